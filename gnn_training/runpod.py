"""The end of a job on RunPod: the pod stops itself, so that nobody pays for an idle one."""

import logging
import re
from collections.abc import Mapping

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from gnn_training.errors import MachineError, UserError

log = logging.getLogger(__name__)
API = "https://api.runpod.io/v2"
BACKOFF = 5.0  # seconds; the waits between tries are 0, twice this, then twice the last one
ANSWER_SECONDS = 30.0


def require_pod(environ: Mapping[str, str]) -> None:
    """Check that the pod can be stopped at the end. UserError if a variable is missing or malformed."""
    if not re.fullmatch(r"[\w-]+", environ.get("RUNPOD_POD_ID", ""), re.ASCII):
        raise UserError("stop_pod needs RUNPOD_POD_ID, which RunPod sets in its pods: leave --stop-pod out elsewhere")
    if not re.fullmatch(r"[!-~]+", environ.get("RUNPOD_API_KEY", "")):
        raise UserError("stop_pod needs RUNPOD_API_KEY, one word: give the pod a key, or stop it by hand")


def stop_pod(environ: Mapping[str, str], api: str = API, backoff: float = BACKOFF) -> None:
    """Ask RunPod to stop this pod, which `require_pod` has accepted. Its volume stays. The platform then ends this
    process. MachineError if RunPod refused or did not answer, so that the pod is still billed.
    """
    pod = environ["RUNPOD_POD_ID"]
    log.info("asking RunPod to stop pod %s", pod)
    retries = Retry(
        4, backoff_factor=backoff, status_forcelist=(429, *range(500, 600)), allowed_methods=None,
        raise_on_status=False, respect_retry_after_header=False,
    )  # fmt: skip
    try:
        answer = urllib3.request(
            "POST", f"{api}/pods/{pod}/action", json={"action": "stop"}, retries=retries, timeout=ANSWER_SECONDS,
            headers={"Authorization": f"Bearer {environ['RUNPOD_API_KEY']}"},
            redirect=False,  # a redirect would carry the key to another server
        )  # fmt: skip
        refusal = "" if answer.status < 300 else f"HTTP {answer.status} {answer.reason}"
    except HTTPError as error:
        refusal = str(getattr(error, "reason", error))
    if refusal:
        billed = f"RunPod did not stop pod {pod} ({refusal}), so it is STILL BILLED"
        raise MachineError(f"{billed}: stop it by hand, in the web console or with runpodctl pod stop {pod}")
    log.info("RunPod stops pod %s; its volume stays, and is billed as storage", pod)
