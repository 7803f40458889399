"""What is checked inside an interpreter that has Isaac Lab: `python isaac_checks.py CHECK ...`.

Each check is a function; it fails by raising. Run by test_isaaclab_itself.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("src", "tests", "examples")]

import isaaclab.envs.mdp as mdp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from isaaclab.envs import ManagerBasedRLEnv  # noqa: E402
from isaaclab.managers import EventTermCfg, ManagerTermBase, RewardTermCfg  # noqa: E402
from isaaclab.managers import SceneEntityCfg as Entity  # noqa: E402
from isaaclab.utils import buffers  # noqa: E402

import isaac_arm  # noqa: E402
import isaac_cartpole  # noqa: E402
from hocket.adapters.envs.isaaclab import IsaacRows  # noqa: E402
from hocket.errors import EnvError, SuspensionError  # noqa: E402
from hocket.testing import check_batched  # noqa: E402
from support import isaac_stand_in as stand_in  # noqa: E402

ROWS = 5


class Undeclared(ManagerTermBase):
    """A reward with a memory of its own: bound anew, with time before rows, made when it is first
    needed, and in a tuple."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.mean, self.past = torch.zeros(env.num_envs), torch.zeros(3, env.num_envs)
        self.sums = (torch.zeros(env.num_envs),)

    def reset(self, env_ids=None):
        self.mean[env_ids] = self.past[:, env_ids] = 0.0

    def __call__(self, env):
        self.mean = 0.9 * self.mean + 0.1 * isaac_arm.distance(env)
        self.past = torch.cat([self.past[1:], self.mean[None]])
        self.late = getattr(self, "late", 0.0) + self.past[0]
        self.sums = (self.sums[0] + self.mean,)
        return self.late + self.sums[0]


class Smoothed(Undeclared):
    row_axes = {"past": 1}  # noqa: RUF012


def arm(rows, *, smoothed=None, pushed=False, **sim):
    cfg = isaac_arm.ArmCfg()
    cfg.scene.num_envs = rows
    for name, value in sim.items():
        setattr(cfg.sim, name, value)
    if smoothed:
        cfg.rewards.smoothed = RewardTermCfg(func=smoothed, weight=1.0)
    if pushed:
        push = {"asset_cfg": Entity("block"), "velocity_range": {"x": (-0.5, 0.5), "z": (0, 1)}}
        cfg.events.push = EventTermCfg(
            func=mdp.push_by_setting_velocity,
            mode="interval",
            interval_range_s=(0.1, 0.3),
            params=push,
        )
    return IsaacRows(ManagerBasedRLEnv(cfg), "arm", "success")


def play(sim, actions, waits, rng):
    """What each row sees and earns in its own steps, while rows wait at random."""
    rows, steps = actions.shape[:2]
    sim.reset(np.arange(rows), ["arm"] * rows, list(range(rows)))
    done, told = np.zeros(rows, int), [[] for _ in range(rows)]
    while (done < steps).any():
        active = (rng.random(rows) >= waits) & (done < steps)
        if not active.any():
            continue
        result = sim.step(actions[np.arange(rows), np.minimum(done, steps - 1)], active)
        (seen,) = sim.observe(np.arange(rows)).values()
        for row in np.flatnonzero(active):
            told[row].append([*seen[row].tolist(), float(result.rewards[row])])
        done += active
    return np.array(told)


def random_waits(sim, schedules, steps):
    """Rows that wait in schedules drawn anew are equal to the bit to rows that never do."""
    seed = int.from_bytes(os.urandom(4), "little")
    sys.stdout.write(f"Schedules were drawn with the seed {seed}.\n")
    rng = np.random.default_rng(seed)
    touched = 0
    for _ in range(schedules):
        actions = rng.normal(0, 1, (ROWS, steps, *sim.action_space.shape)).clip(-1, 1)
        actions[:, :, 1] = np.abs(actions[:, :, 1])  # towards the ground
        expected = play(sim, actions.astype(np.float32), 0.0, rng)
        # Of what is seen, these are how long each finger has touched nothing.
        touched += int((expected[:, :, 32:34] == 0.0).sum())
        waited = play(sim, actions.astype(np.float32), rng.uniform(0.2, 0.8), rng)
        np.testing.assert_array_equal(waited, expected)
    assert touched > 10 * schedules, touched
    sim.close()


def cartpole_keeps_the_rules_of_batched_simulators():
    make = isaac_cartpole.make
    check_batched(lambda rows: IsaacRows(make(rows), "pole", "success"), rows=ROWS, steps=12)


def arm_keeps_the_rules_of_batched_simulators():
    check_batched(arm, rows=ROWS, steps=12)


def arm_waits_at_random():
    random_waits(arm(ROWS), schedules=int(os.environ.get("SCHEDULES", "5")), steps=100)


def terms_and_events_of_a_user_wait():
    random_waits(arm(ROWS, smoothed=Smoothed, pushed=True), schedules=2, steps=50)
    # Isaac Lab's own actuators, which Newton's stand in for where they can.
    random_waits(arm(ROWS, pushed=True, use_newton_actuators=False), schedules=2, steps=50)


def words_of(kind, work, *arguments):
    try:
        work(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"No {kind.__name__} was raised.")


def what_is_ambiguous_is_refused():
    sim = arm(ROWS, smoothed=Undeclared)
    sim.reset(np.arange(ROWS), ["arm"] * ROWS, [0] * ROWS)
    words = words_of(SuspensionError, sim.step, np.zeros((ROWS, 5)), np.arange(ROWS) > 0)
    assert "past of Undeclared" in words, words
    assert "row_axes" in words, words
    sim.close()


def lost_contacts_end_the_run_in_words():
    cfg = isaac_arm.ArmCfg()
    cfg.scene.num_envs = ROWS
    cfg.sim.physics.solver_cfg.nconmax = 2
    sim = IsaacRows(ManagerBasedRLEnv(cfg), "arm", "success")
    actions = np.ones((ROWS, 30, 5), np.float32)
    words = words_of(EnvError, play, sim, actions, 0.0, np.random.default_rng(0))
    assert "Raise nconmax" in words, words
    sim.close()


def cameras_are_asked_for(env):
    """That they are not drawn then is for Isaac Sim to show, which draws them."""
    told, rows = [], IsaacRows(env, "arm", "success")
    update = env.scene.update
    env.scene.update = lambda dt: told.append(env.render_enabled) or update(dt=dt)
    for rows.draws in (False, True):
        rows.step(np.zeros((2, 5)), np.ones(2, bool))
    assert told == sorted(told), told
    assert set(told) == {False, True}, told
    rows.draws = False
    rows.step(np.zeros((2, 5)), np.ones(2, bool))
    rows.reset(np.arange(2), ["arm"] * 2, [0, 1])
    assert env.render_enabled


def stand_in_does_as_isaac_lab_does():
    data = torch.rand(20, ROWS, 4)
    ours, theirs = stand_in.CircularBuffer(3, ROWS), buffers.CircularBuffer(3, ROWS, "cpu")
    for step, frame in enumerate(data):
        if step == 9:
            theirs.reset([1, 2])
            ours._num_pushes[[1, 2]], ours._need_reset = 0, True
            ours._buffer[:, [1, 2]] = 0
        ours.append(frame)
        theirs.append(frame)
        assert vars(ours).keys() <= vars(theirs).keys()
        assert torch.equal(ours._buffer, theirs._buffer)
        assert ours._need_reset == theirs._need_reset
    ours, theirs = stand_in.DelayBuffer(2, ROWS), buffers.DelayBuffer(2, ROWS, "cpu")
    theirs.set_time_lag(2)
    for step, frame in enumerate(data[..., :2]):
        assert torch.equal(ours.compute(frame), theirs.compute(frame))
        # Until it is full, the rest of theirs is whatever the memory held.
        assert step < 2 or torch.equal(ours._buffer, theirs._buffer)
        assert vars(ours).keys() <= vars(theirs).keys()
    assert callable(stand_in.Term(stand_in.StandIn(2)))
    assert callable(ManagerTermBase(None, None))
    env, ids = isaac_arm.make(2), torch.tensor([0])
    robot = env.scene["robot"]
    env.reset(seed=0)
    state = env.scene.get_state()
    state["articulation"]["robot"]["joint_velocity"] += 0.5
    picked = {
        k: {n: {p: v[:1] for p, v in t.items()} for n, t in s.items()} for k, s in state.items()
    }
    env.scene.reset_to(picked, env_ids=ids)
    assert (robot.data.joint_vel_target.torch[0] == 0.5).all(), "reset_to rewrites targets"
    env.reset(seed=0, env_ids=ids)
    assert (robot.data.joint_vel_target.torch[0] == 0.5).all(), "no reset clears them"
    term = env.action_manager.get_term("arm")
    before = term._processed_actions
    env.step(torch.ones(2, 5))
    assert term._processed_actions is not before, "terms bind their tensors anew"
    cameras_are_asked_for(env)
    for name in vars(stand_in.StandIn(2)):
        known = ("limit", "own_resets", "pose", "velocity", "target")
        assert name in known or hasattr(env, name) or name in ("terminated", "time_outs"), name


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(f"{name} ...\n")
        sys.stdout.flush()
        globals()[name]()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    os._exit(0)
