"""What a training asks of a GPU, on pretended ones: no waiting, few launches, and a way out when something fails."""

import json
from pathlib import Path

import fake_cuda
import pytest
from fake_cuda import FakeCuda

pytestmark = pytest.mark.slow  # compiles for a GPU
STEPS = fake_cuda.HERE / "steps.py"
# Most launches of a step and of an evaluation's searches besides those of the rounds, and of a round.
LAUNCHES = {"step": 352, "evaluation": 177}
PER_ROUND = {"eager": 260, "compiled": 45}
PEAK_MB = {"eager": 70, "compiled": 170}
ROUNDS = 100


def measured(gpus: FakeCuda, data: Path, mode: str, **options) -> dict:
    result = gpus.run(STEPS, data, mode, ROUNDS, **options)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", PER_ROUND)
def test_neither_a_step_nor_a_search_waits_for_the_gpu_and_both_launch_few_kernels(gpus, tiny_data: Path, mode: str):
    found = measured(gpus, tiny_data, mode)
    (check,) = found["check"]
    assert check["searches"] == mode
    for part, limit in LAUNCHES.items():
        for name in ("syncs", "reads", "pageable copies", "problems"):
            assert found[part][name] == 0, (part, name)
        assert found[part]["launches"] <= limit + ROUNDS * PER_ROUND[mode], part
    assert found["step"]["allocations"] == 0
    assert found["peak"] <= 1e6 * PEAK_MB[mode]


def test_without_enough_memory_a_sentence_says_what_to_lower(gpus, tiny_data: Path):
    result = gpus.run(fake_cuda.HERE / "memory.py", tiny_data)
    assert result.stdout == "the GPU of rank 0 has too little memory: lower --batch-size\n", result.stderr[-3000:]
