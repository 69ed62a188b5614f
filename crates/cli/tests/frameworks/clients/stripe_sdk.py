"""Makes calls with Stripe's own SDK, and says what came of each: a line of JSON.

Reads {"url": URL, "sequences": [[CALL, ...], ...]} from standard input. The calls of a sequence are
made one after the other, the sequences at the same time.
"""

import concurrent.futures
import json
import sys

import stripe


def outcome(url, call):
    client = stripe.StripeClient(
        call["api_key"],
        base_addresses={"api": url},
        max_network_retries=call["retries"],
    )
    service = getattr(client.v1, call["resource"])
    options = {"idempotency_key": call["key"]} if call["key"] else {}
    try:
        if call["method"] == "retrieve":
            made = service.retrieve("cus_1", options=options)
        else:
            made = service.create({"description": call["description"]}, options=options)
        return {"resolved": made.to_dict()}
    except stripe.StripeError as error:
        body = error.json_body or {}
        said = body.get("error", {})
        return {
            "class": type(error).__name__,
            "status": error.http_status,
            "code": said.get("code"),
            "message": error.user_message,
        }


def run(url, sequence):
    for call in sequence:
        line = {"name": call["name"], **outcome(url, call)}
        # In one piece, because other sequences write too.
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main():
    wanted = json.load(sys.stdin)
    sequences = wanted["sequences"]
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(sequences)) as pool:
        for done in [pool.submit(run, wanted["url"], sequence) for sequence in sequences]:
            done.result()


main()
