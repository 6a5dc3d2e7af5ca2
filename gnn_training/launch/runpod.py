"""Stop the RunPod pod that this runs on, so that its GPUs are no longer billed."""

import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException

from gnn_training.errors import MachineError, UserError

log = logging.getLogger(__name__)
API = "https://api.runpod.io/v2"
PAUSES = (2.0, 10.0, 30.0)  # seconds before another try
TIMEOUT = 30.0  # seconds for an answer


def require(environ: Mapping[str, str]) -> None:
    """Refuse at the start what would keep the pod from being stopped at the end. Raises UserError: a variable is
    missing or malformed.
    """
    if not re.fullmatch(r"[\w-]+", environ.get("RUNPOD_POD_ID", ""), re.ASCII):
        raise UserError("stop_pod needs RUNPOD_POD_ID, which RunPod sets in its pods: leave --stop-pod out elsewhere")
    if not re.fullmatch(r"[!-~]+", environ.get("RUNPOD_API_KEY", "")):
        raise UserError("stop_pod needs RUNPOD_API_KEY, one word: give the pod a key, or stop it by hand")


def stop_pod(environ: Mapping[str, str], api: str = API, pauses: Sequence[float] = PAUSES) -> None:
    """Ask RunPod to stop this pod. Its volume stays. The platform then ends this process. Raises UserError: as
    `require`. MachineError: RunPod refused or did not answer, so the pod is still billed.
    """
    require(environ)
    pod = environ["RUNPOD_POD_ID"]
    log.info("asking RunPod to stop pod %s", pod)
    for pause in (*pauses, 0.0):
        refusal, is_final = _ask(f"{api}/pods/{pod}/action", environ["RUNPOD_API_KEY"])
        if not refusal:
            log.info("RunPod stops pod %s; its volume stays, and is billed as storage", pod)
            return
        if is_final:
            break
        log.warning("RunPod did not stop pod %s (%s)", pod, refusal)
        time.sleep(pause)
    billed = f"RunPod did not stop pod {pod} ({refusal}), so it is STILL BILLED"
    raise MachineError(f"{billed}: stop it by hand, in the web console or with runpodctl pod stop {pod}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Refuse: a redirect would carry the key to another server."""


def _ask(url: str, key: str) -> tuple[str, bool]:
    """Return why it was refused, nothing if it was not; and whether another try is useless."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, b'{"action": "stop"}', headers, method="POST")
    try:
        urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT).close()
        return "", True
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code} {error.reason}", error.code != 429 and error.code < 500
    except (OSError, HTTPException) as error:  # URLError is an OSError
        return str(getattr(error, "reason", error)) or type(error).__name__, False
