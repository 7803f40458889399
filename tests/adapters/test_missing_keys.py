"""What a server lacks is told with what it was sent, and with the mapping that has it."""

from __future__ import annotations

import numpy as np

from hocket.adapters.policies.mapping import BUILTIN, missing_key


def test_a_key_that_a_server_lacks_is_told_with_the_mapping_that_sends_it() -> None:
    for name, rules in BUILTIN.items():
        for key in rules["request"]:
            said = missing_key(f"KeyError: '{key}'", {"joints": np.zeros(2)})
            assert said.startswith("The server was sent 'joints'.")
            assert f"sends {key!r}" in said, name


def test_an_error_that_names_no_known_key_is_told_with_what_was_sent_alone() -> None:
    assert missing_key("CUDA out of memory", {"a": 1, "b": 2}) == "The server was sent 'a', 'b'."
