"""An arm of three joints with a hand of two fingers, written as USD: no asset server is asked."""

from __future__ import annotations

from pathlib import Path

from pxr import Gf, Sdf, Usd, UsdGeom, UsdPhysics

FINGER = (0.012, 0.02, 0.06)


def write_arm(path: Path) -> None:
    stage = Usd.Stage.CreateNew(str(path))
    UsdGeom.SetStageUpAxis(stage, UsdGeom.Tokens.z)
    UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    root = UsdGeom.Xform.Define(stage, "/arm")
    UsdPhysics.ArticulationRootAPI.Apply(root.GetPrim())
    stage.SetDefaultPrim(root.GetPrim())
    for name, z, mass, size in (
        ("base", 0.0, 2.0, (0.12, 0.12, 0.08)),
        ("turret", 0.08, 0.6, (0.06, 0.06, 0.08)),
        ("upper", 0.22, 0.5, (0.04, 0.04, 0.2)),
        ("fore", 0.42, 0.4, (0.03, 0.03, 0.2)),
    ):
        link(stage, name, (0.0, 0.0, z), mass, size)
    for name, y in (("left", 0.035), ("right", -0.035)):
        link(stage, name, (0.0, y, 0.55), 0.05, FINGER)
    joint(stage, UsdPhysics.FixedJoint, "hold", None, "base", (0, 0, 0))
    turn = UsdPhysics.RevoluteJoint
    joint(stage, turn, "yaw", "base", "turret", (0, 0, 0.04), "Z", (-120, 120))
    joint(stage, turn, "shoulder", "turret", "upper", (0, 0, 0.12), "Y", (-30, 120))
    joint(stage, turn, "elbow", "upper", "fore", (0, 0, 0.32), "Y", (-10, 130))
    slide = UsdPhysics.PrismaticJoint
    joint(stage, slide, "left_finger", "fore", "left", (0, 0.035, 0.52), "Y", (-0.03, 0.01))
    joint(stage, slide, "right_finger", "fore", "right", (0, -0.035, 0.52), "Y", (-0.01, 0.03))
    stage.Save()


def link(
    stage: Usd.Stage,
    name: str,
    place: tuple[float, float, float],
    mass: float,
    size: tuple[float, float, float],
) -> None:
    """A box that is a body of its own."""
    body = UsdGeom.Xform.Define(stage, f"/arm/{name}")
    body.AddTranslateOp().Set(Gf.Vec3d(*place))
    UsdPhysics.RigidBodyAPI.Apply(body.GetPrim())
    UsdPhysics.MassAPI.Apply(body.GetPrim()).CreateMassAttr(mass)
    box = UsdGeom.Cube.Define(stage, f"/arm/{name}/box")
    box.CreateSizeAttr(1.0)
    box.AddScaleOp().Set(Gf.Vec3f(*size))
    UsdPhysics.CollisionAPI.Apply(box.GetPrim())


def joint(
    stage: Usd.Stage,
    kind: type,
    name: str,
    parent: str | None,
    child: str,
    place: tuple[float, float, float],
    axis: str | None = None,
    limits: tuple[float, float] = (0, 0),
) -> None:
    """A joint at a place in the world, as long as all joints are at zero."""
    made = kind.Define(stage, f"/arm/{name}")
    for side, link_name in ((0, parent), (1, child)):
        body = stage.GetPrimAtPath(f"/arm/{link_name}") if link_name else None
        at = Gf.Vec3d(*place)
        if body:
            getattr(made, f"CreateBody{side}Rel")().SetTargets([Sdf.Path(f"/arm/{link_name}")])
            at -= body.GetAttribute("xformOp:translate").Get()
        getattr(made, f"CreateLocalPos{side}Attr")().Set(Gf.Vec3f(at))
    if axis:
        made.CreateAxisAttr(axis)
        made.CreateLowerLimitAttr(limits[0])
        made.CreateUpperLimitAttr(limits[1])
