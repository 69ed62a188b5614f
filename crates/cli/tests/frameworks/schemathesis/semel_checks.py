"""What Schemathesis checks besides the description."""

import schemathesis


@schemathesis.check
def no_failure_of_the_server(ctx, response, case):
    # A claim with `on_unknown = "fail"` whose lease has ended is answered with its recorded failure.
    recorded = '"urn:semel:problem:operation-failed"' in response.text
    if response.status_code >= 500 and not (response.status_code == 500 and recorded):
        raise AssertionError(f"{response.status_code}: {response.text}")
