"""Steps whose launches a GPU records once and repeats as one, for all steps of the same form.

A recording repeats kernels on the memory they were recorded with, so everything that changes from step to step must
lie in its inputs. Whether it does is proven for every form: recorded on the inputs of one step, it has to find the
gradient of another.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_training.training.sampler import Shape

log = logging.getLogger(__name__)
WARM_UPS = 3  # what is compiled, tuned or allocated by the first calls cannot be recorded
COMPARED_ROUNDS = 2  # free rounds of a comparison: over many, even the last bits of a number would grow large


class Recording:
    """The launches of function(*inputs), which every call repeats on new inputs; its results are overwritten then."""

    def __init__(self, function: Callable, inputs: Sequence[Tensor], pool: Any, stream: torch.cuda.Stream):
        self.inputs, self.graph = [x.clone() for x in inputs], torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):  # left even where torch.cuda.graph fails to leave it
                for _ in range(WARM_UPS):
                    function(*self.inputs)
                # Of this thread only: the one that watches NCCL may ask the driver what a recording must not ask.
                with torch.cuda.graph(self.graph, pool, stream, capture_error_mode="thread_local"):
                    self.results = function(*self.inputs)
        finally:
            torch.cuda.current_stream().wait_stream(stream)

    def __call__(self, *inputs: Tensor) -> Any:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return self.results


class Form(NamedTuple):
    """Steps of one form launch the same kernels, up to how often they repeat a free round."""

    shape: Shape
    rounds: int
    is_free: bool


@dataclass(frozen=True)
class Parts:
    """A step in its parts; numbers (3, G) int64 are its graphs, share () is the weight of each in the loss.

    whole(shape, rounds, numbers, share, no_gradient_rounds) is begin(shape, numbers), which returns a state, advance(*state)
    in place for every free round, and finish(rounds, *state, share). It adds to the results, as `finish` does.
    """

    whole: Callable[..., None]
    begin: Callable[..., tuple]
    advance: Callable[..., None]
    finish: Callable[..., None]


class Recorder:
    """Takes steps: as they are written when their form is new, recorded from its second time on.

    Args:
        results: what a step adds to: gradient and loss terms.
        tolerance: relative error of each that a recording may have.
        record: makes a recording of a function and its inputs; by default of what it launches on a GPU.
        speaks: whether to log why nothing is recorded, if so.
    """

    def __init__(
        self,
        parts: Parts,
        results: Sequence[Tensor],
        tolerance: float,
        record: Callable[..., Callable] | None = None,
        speaks: bool = True,
    ):
        self.parts, self.results, self.tolerance, self.speaks = parts, results, tolerance, speaks
        # One pool for all: their steps follow one another and may use the same memory.
        self.record = record or partial(Recording, pool=torch.cuda.graph_pool_handle(), stream=torch.cuda.Stream())
        self.met: dict[Form, tuple[Tensor, Tensor]] = {}  # with the inputs of its first step
        self.recorded: dict[Form, Callable[[Tensor, Tensor, int], object]] = {}
        self.works = True

    def __call__(self, shape: Shape, rounds: int, numbers: Tensor, share: Tensor, no_gradient_rounds: int) -> None:
        """Add what a step finds to the results."""
        form = Form(shape, rounds, no_gradient_rounds > 0)
        plain = partial(self.parts.whole, shape, rounds)
        if self.works and form in self.met and form not in self.recorded:
            before = [x.clone() for x in self.results]
            self._try(form, plain, numbers, share, min(no_gradient_rounds, COMPARED_ROUNDS))
            for x, value in zip(self.results, before, strict=True):
                x.copy_(value)
        self.met.setdefault(form, (numbers, share))
        self.recorded.get(form, plain)(numbers, share, no_gradient_rounds)

    def _try(self, form: Form, plain: Callable, *step: Tensor | int) -> None:
        """Keep a recording of this form if it finds what the plain step finds; else give up recording."""
        try:
            expected = self._found(plain, *step)
            if not all(x.isfinite().all() for x in expected):
                return  # nothing to compare with; the form will be met again
            recorded = self._recorded(form, *self.met[form])
            found = self._found(recorded, *step)
            errors = [float((x - y).norm() / y.norm()) for x, y in zip(found, expected, strict=True)]
            if not all(error <= self.tolerance for error in errors):  # none is, if it is no number
                raise RuntimeError(f"a recorded step was wrong by {max(errors):.1e}")
            self.recorded[form] = recorded
        except RuntimeError as error:  # out of memory is one, too
            self.works = False
            self.recorded.clear()
            if self.speaks:
                reason = str(error.__context__ or error).partition("\n")[0]
                log.warning("GPU steps are launched one by one, which is slower: %s", reason)

    def _found(self, step: Callable, *inputs: Tensor | int) -> list[Tensor]:
        for x in self.results:
            x.zero_()
        step(*inputs)
        return [x.clone() for x in self.results]

    def _recorded(self, form: Form, numbers: Tensor, share: Tensor) -> Callable[[Tensor, Tensor, int], object]:
        parts, (shape, rounds, is_free) = self.parts, form
        if not is_free:  # the gradient reaches the first state, too
            whole = self.record(partial(parts.whole, shape, rounds, no_gradient_rounds=0), [numbers, share])
            return lambda numbers, share, _: whole(numbers, share)
        begin = self.record(partial(parts.begin, shape), [numbers])
        state = begin(numbers)
        advance = self.record(partial(parts.advance, *state), [])
        finish = self.record(partial(parts.finish, rounds, *state), [share])

        def step(numbers: Tensor, share: Tensor, no_gradient_rounds: int) -> None:
            begin(numbers)
            for _ in range(no_gradient_rounds):
                advance()
            finish(share)

        return step
