"""Charges some customers, one key each, and says what came of it: a line of JSON for each.

usage: urllib3_retry.py URL COUNT [PREFIX]
"""

import json
import sys

import urllib3

url, count = sys.argv[1], int(sys.argv[2])
prefix = sys.argv[3] if len(sys.argv) > 3 else "key-"
# POST is not among the methods that it repeats by itself. With a key it may be.
retry = urllib3.Retry(
    total=5,
    backoff_factor=0.1,
    allowed_methods={"POST"},
    status_forcelist={409, 502, 503, 504},
    raise_on_status=False,
)
http = urllib3.PoolManager(retries=retry, timeout=30)

for number in range(count):
    key = f"{prefix}{number}"
    answer = http.request(
        "POST",
        f"{url}/charges",
        json={"customer": key, "amount": number},
        headers={"Idempotency-Key": key},
    )
    line = {
        "key": key,
        "status": answer.status,
        "replayed": answer.headers.get("Idempotent-Replayed"),
        "tries": 1 + len(answer.retries.history),
        "body": answer.data.hex(),
    }
    print(json.dumps(line), flush=True)
