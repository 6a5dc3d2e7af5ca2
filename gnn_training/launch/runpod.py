"""Stop the RunPod pod that this runs on, so that it is no longer billed for its GPUs."""

import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException

from gnn_training.errors import MachineError, UserError

log = logging.getLogger(__name__)
API = "https://rest.runpod.io/v1"
PAUSES = (2.0, 10.0, 30.0)  # seconds before another try
TIMEOUT = 30.0  # seconds for an answer


def require(environ: Mapping[str, str]) -> None:
    """Refuse now what would keep the pod from being stopped in the end.

    Raises:
        UserError: a variable is missing or cannot be what it should be.
    """
    if not re.fullmatch(r"[\w-]+", environ.get("RUNPOD_POD_ID", ""), re.ASCII):
        raise UserError("stop_pod needs RUNPOD_POD_ID, which RunPod sets in its pods: leave --stop-pod out elsewhere")
    if not re.fullmatch(r"[!-~]+", environ.get("RUNPOD_API_KEY", "")):
        raise UserError(
            "stop_pod needs RUNPOD_API_KEY, one word: give the pod a key that may stop it, or do it by hand"
        )


def stop_pod(environ: Mapping[str, str], api: str = API, pauses: Sequence[float] = PAUSES) -> None:
    """Ask RunPod to stop this pod; its volume stays. The platform then ends this process.

    Raises:
        UserError: as `require`.
        MachineError: RunPod did not take it, so the pod runs on and is billed.
    """
    require(environ)
    pod = environ["RUNPOD_POD_ID"]
    log.info("asking RunPod to stop pod %s", pod)
    for pause in (*pauses, None):
        refusal, may_pass = _ask(f"{api}/pods/{pod}/stop", environ["RUNPOD_API_KEY"])
        if refusal is None:
            log.info("RunPod stops pod %s; what is on its volume stays, and is billed as storage", pod)
            return
        if pause is None or not may_pass:
            break
        log.warning("RunPod did not stop pod %s (%s); trying again in %.0f s", pod, refusal, pause)
        time.sleep(pause)
    raise MachineError(
        f"RunPod did not stop pod {pod} ({refusal}), so it is STILL BILLED: stop it by hand, "
        f"in the web console or with runpodctl stop pod {pod}"
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another server, and turn the order into a question."""

    def redirect_request(self, *_: object) -> None:
        return None


def _ask(url: str, key: str) -> tuple[str | None, bool]:
    """Why it was refused, None if it was not; and whether it may go better another time."""
    order = urllib.request.Request(url, method="POST", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.build_opener(_NoRedirect).open(order, timeout=TIMEOUT):
            return None, False
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP {error.code} {error.reason}", error.code == 429 or error.code >= 500
    except urllib.error.URLError as error:
        return str(error.reason), True
    except (OSError, HTTPException) as error:
        return str(error) or type(error).__name__, True
