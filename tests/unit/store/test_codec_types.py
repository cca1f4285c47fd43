"""What a step returned is what its readers get, in this process and in another."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from aioreactor.store.codec import codec_for
from aioreactor.store.codec_compare import difference
from tests.unit.store.types_kit import SAMPLES


@pytest.mark.parametrize(("annotation", "value"), [s[1:] for s in SAMPLES], ids=[s[0] for s in SAMPLES])
def test_comes_back_equal_and_of_the_same_type(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    back = codec.decode(codec.encode(value))
    assert type(back) is type(value)
    assert difference(value, back) is None


def test_comes_back_in_another_process() -> None:
    encoded = {name: base64.b64encode(codec_for(a).encode(v)).decode() for name, a, v in SAMPLES}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.store.decode_elsewhere"],
        input=json.dumps(encoded),
        capture_output=True,
        text=True,
        env=env,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["wrong"] == {}
