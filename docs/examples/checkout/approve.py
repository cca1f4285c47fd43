"""The office: ``python -m checkout.approve checkout-7 ann`` approves a check-out, with ``--refuse`` it does the opposite."""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.error
import urllib.request
import uuid

from checkout.signature import sign


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout")
    parser.add_argument("by")
    parser.add_argument("--refuse", action="store_true")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    given = parser.parse_args()
    approval = {"approved": not given.refuse, "by": given.by}
    body = json.dumps({"id": str(uuid.uuid4()), "checkout": given.checkout, "approval": approval}).encode()
    signature = sign(os.environ["CHECKOUT_SECRET"].encode(), body, time.time())
    request = urllib.request.Request(f"{given.url}/webhooks/approval", body, {"Webhook-Signature": signature})
    try:
        with urllib.request.urlopen(request) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())


if __name__ == "__main__":
    main()
