"""What a training asks of a GPU, on a pretended one: no waiting, few launches, each on its stream."""

import json
from pathlib import Path

import fake_cuda
import pytest
from fake_cuda import FakeCuda

pytestmark = pytest.mark.slow  # compiles for a GPU
LAUNCHES = {"step": 400, "evaluation": 200}  # at most


def test_steps_and_evaluations_never_wait_for_the_gpu_and_launch_few_kernels(gpus: FakeCuda, tiny_data: Path):
    result = gpus.run(fake_cuda.HERE / "steps.py", tiny_data, 100)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    for part, limit in LAUNCHES.items():
        for name in ("syncs", "reads", "pageable copies", "problems"):
            assert found[part][name] == 0, (part, name)
        assert found[part]["launches"] <= limit and found[part]["searches"] == 1, part
    assert found["step"]["allocations"] == 0 and found["step"]["all-reduces"] == 1
    assert found["evaluation"]["streams"] == 1
