"""What users import is a promise: a name that goes or comes is seen here."""

import hocket


def test_public_names_are_these() -> None:
    assert hocket.__all__ == [
        "Actions",
        "ArraySpec",
        "Batch",
        "ChunkReplay",
        "Episode",
        "EvalConfig",
        "HocketError",
        "Outcome",
        "Policy",
        "PolicySpec",
        "Report",
        "Row",
        "Suite",
        "Suspendable",
        "TaskInfo",
        "Trial",
        "__version__",
        "evaluate",
        "resume",
    ]


def test_every_public_name_can_be_had() -> None:
    for name in hocket.__all__:
        assert getattr(hocket, name) is not None
    assert set(hocket.__all__) <= set(dir(hocket))
