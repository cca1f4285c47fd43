"""Run as a process: decodes what the tests encoded and compares it with what it should be."""

from __future__ import annotations

import base64
import json
import sys


def main() -> None:
    from aioreactor.store.codec import codec_for
    from aioreactor.store.codec_compare import difference
    from tests.unit.store.types_kit import SAMPLES

    encoded = json.load(sys.stdin)
    wrong = {}
    for name, annotation, value in SAMPLES:
        back = codec_for(annotation).decode(base64.b64decode(encoded[name]))
        found = difference(value, back)
        if found or type(back) is not type(value):
            wrong[name] = found or f"{type(value)} came back as {type(back)}"
    json.dump({"wrong": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
