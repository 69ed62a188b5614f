"""Makes calls with OpenAI's own SDK, and says what came of each: a line of JSON.

Reads {"url": URL, "sequences": [[CALL, ...], ...]} from standard input. The calls of a sequence are
made one after the other, the sequences at the same time.
"""

import concurrent.futures
import json
import sys

import openai


def outcome(url, call):
    client = openai.OpenAI(
        api_key=call["api_key"],
        base_url=f"{url}/v1",
        max_retries=call["retries"],
    )
    try:
        made = client.chat.completions.create(
            model="a-model",
            messages=[{"role": "user", "content": call["description"]}],
            extra_headers={"Idempotency-Key": call["key"]},
        )
        return {"resolved": made.to_dict()}
    except openai.APIError as error:
        said = error.body or {}
        return {
            "class": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "code": error.code,
            "message": said.get("message", error.message),
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
