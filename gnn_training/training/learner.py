"""The loss of the training, and one optimizer step on any number of ranks.

The rule of moving is trained on the results of whole searches, which have no gradient. So every graph is searched
twice, with the weights plus and minus a random change, and a surrogate loss has the gradient that an evolution strategy
estimates (Rechenberg 1973, Salimans et al. 2017; this is also REINFORCE on the weights, Sehnke et al. 2010). The
predictions are trained by maximum likelihood. The crossover network is trained by the squared error of the conflicts
that it expects of the children of self-play.
"""

import copy
import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import get_ema_multi_avg_fn

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.distributed import Runtime
from gnn_training.errors import UserError
from gnn_training.network.crossover_network import size_of, squared_errors
from gnn_training.network.network import SAVED, ColoringNetwork, PredictionOutputs
from gnn_training.network.rule import NONE_FOUND
from gnn_training.search.batches import Searcher
from gnn_training.settings import TrainSettings
from gnn_training.training.games import PairBatch
from gnn_training.training.loader import GraphBatch, StateBatch

LOSS_WEIGHTS = {"gap": 1.0, "saved": 0.5, "graph_type": 0.05, "rounds": 0.2, "crossover": 1.0}
# Learning rates of the parts of the network, as multiples of the learning rate of the training.
RATE_SCALES = {"rule": 1.0, "predictions": 0.075, "crossover": 0.05}
GRADIENT_NORMS = tuple(f"{part}_gradient_norm" for part in RATE_SCALES)  # norms before clipping
STEP_METRICS = (*LOSS_WEIGHTS, *GRADIENT_NORMS)  # metrics that a record averages over the steps since the last record
SIGMA = 0.2  # standard deviation of the random change (SIGMA times epsilon) of every weight of the rule
PER_LOG_CONFLICT = 0.15  # a search costs its colors plus this times log(1 + conflicts left)
ADVANTAGE_SCALE = 0.2  # in colors; larger differences count little more, so that no graph dominates
LR_SCALINGS = {"none": lambda ranks: 1.0, "sqrt": math.sqrt, "linear": float}
MAX_BAD_STEPS = 10  # non-finite steps in a row before training gives up


class Learner:
    """The network with its optimizer, schedule and averaged weights. num_steps: the steps of the whole training."""

    def __init__(self, settings: TrainSettings, search: Searcher, rt: Runtime, num_steps: int):
        self.settings, self.search, self.rt, self.num_steps = settings, search, rt, num_steps
        self.has_states = True  # whether any rank has states to train the predictions on
        torch.manual_seed(settings.seed)  # the same first weights on every rank
        self.network = ColoringNetwork(settings.width, settings.layers).to(rt.device)
        self.average, self.num_averaged = copy.deepcopy(self.network), 0
        self.ddp = DistributedDataParallel(self.network, gradient_as_bucket_view=True)
        self.precision = _precision(settings.precision, rt.device)
        # The scaler also skips steps that are not finite, on the device. Only fp16 needs it to scale.
        self.fixed_scale = None if self.precision == torch.float16 else 1.0
        self.scaler = torch.amp.GradScaler(rt.device.type, self.fixed_scale or 2.0**16)
        self.peak_rate = settings.peak_rate * LR_SCALINGS[settings.lr_scaling](rt.world_size)
        parameters = list(self.network.named_parameters())
        self.parts = [[weights for name, weights in parameters if name.split(".")[0] == part] for part in RATE_SCALES]
        groups, decay = [{"params": part} for part in self.parts], settings.weight_decay
        self.optimizer = torch.optim.AdamW(groups, lr=1.0, weight_decay=decay, fused=True)  # the schedule multiplies lr
        self.bad_steps, self.skipped_steps = (torch.zeros((), device=rt.device) for _ in range(2))
        # Sums over the steps of this rank since the last `reduce`, and their number.
        self._sums, self._steps_summed = torch.zeros(len(STEP_METRICS), device=rt.device), 0
        self.totals = dict.fromkeys((*STEP_METRICS, "steps"), 0.0)  # sums over all ranks since the last `means`
        self.set_step(0)

    def update(self, graphs: GraphBatch, states: StateBatch | None = None, pairs: PairBatch | None = None) -> None:
        """Take one optimizer step. The loss terms are means over the graphs, states and pairs of all ranks. A gradient
        that is not finite leaves the weights unchanged; the device decides this, with the same result on all ranks.
        """
        # Search
        rule, epsilon = self.network.rule.detach(), torch.stack([graphs.epsilon, -graphs.epsilon])
        fewest, conflicts = self.search(rule + SIGMA * epsilon, graphs, self.settings.rounds)
        # Loss
        with torch.autocast(self.rt.device.type, self.precision, enabled=self.precision != torch.float32):
            terms = loss_terms(self.ddp, graphs, states, pairs, fewest, conflicts)
            loss = torch.stack([weight * terms[name] for name, weight in LOSS_WEIGHTS.items()]).sum()
            if not (states and pairs):  # DDP waits for a gradient of every weight
                loss = loss + 0.0 * parameters_to_vector(self.network.parameters()).sum()
        # Backward
        self.scaler.scale(loss * self.rt.world_size).backward()  # DDP divides the sum over ranks by their number
        # Clip
        self.scaler.unscale_(self.optimizer)
        norms = torch.stack([clip_grad_norm_(part, self.settings.clip) for part in self.parts])
        # Step
        groups = dict(zip(RATE_SCALES, self.optimizer.param_groups, strict=True))
        for part, is_trained in (("crossover", pairs), ("predictions", self.has_states)):
            if not is_trained:  # neither decay nor momentum may move it; the schedule sets its rate again
                groups[part]["lr"] = 0.0
        self.scaler.step(self.optimizer)
        self.scaler.update(self.fixed_scale)
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=False)
        self._update_ema()
        self._accumulate(torch.stack([terms[name].detach() for name in LOSS_WEIGHTS]), norms)

    def _update_ema(self) -> None:
        """Update the exponential moving average (EMA) of the weights; the first step sets it to the weights. torch's
        AveragedModel does the same, but reads its counter from the GPU in every step.
        """
        averaged, trained = ([p.detach() for p in net.parameters()] for net in (self.average, self.network))
        get_ema_multi_avg_fn(self.settings.ema if self.num_averaged else 0.0)(averaged, trained, self.num_averaged)
        self.num_averaged += 1

    def _accumulate(self, terms: Tensor, norms: Tensor) -> None:
        """Add the losses and norms of a step to the sums, and count steps whose gradient is not finite."""
        is_bad = 1.0 - torch.isfinite(norms.sum()).float()
        self.bad_steps.add_(1).mul_(is_bad)
        self.skipped_steps.add_(is_bad)
        self._sums += torch.cat([terms, norms / self.rt.world_size])  # the norms are the same on all ranks
        self._steps_summed += 1

    def _clear_sums(self) -> None:
        self._sums.zero_()
        self._steps_summed = 0

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return self.schedule.last_epoch

    @property
    def learning_rate(self) -> float:
        """Learning rate of the rule in the next step."""
        return float(self.schedule.get_last_lr()[0])

    def set_step(self, step: int) -> None:
        """Continue at this step, with its learning rate."""
        for group in self.optimizer.param_groups:
            group["initial_lr"] = 1.0
        size = self.peak_rate, self.settings.warmup_steps, self.num_steps

        def rate_of(share: float) -> Callable[[int], float]:
            return lambda step: share * learning_rate(step, *size)

        self.schedule = LambdaLR(self.optimizer, [*map(rate_of, RATE_SCALES.values())], last_epoch=step - 1)

    def reduce(self) -> None:
        """Add loss terms and gradient norms of all ranks to the totals. Wait for a GPU, unless no step was taken since
        the last call. UserError after MAX_BAD_STEPS consecutive steps that were not finite.
        """
        if not self._steps_summed:  # the same on all ranks
            return
        for name, total in zip(STEP_METRICS, self.rt.total(self._sums.clone()).tolist(), strict=True):
            self.totals[name] += total
        self.totals["steps"] += self._steps_summed
        self._clear_sums()
        if self.rt.any_rank(self.bad_steps.item() >= MAX_BAD_STEPS)[0]:
            raise UserError(
                f"the loss was not finite {MAX_BAD_STEPS} steps in a row (step {self.step}): "
                f"lower --learning-rate ({self.settings.peak_rate}) or --clip ({self.settings.clip})"
            )

    def means(self) -> dict[str, float]:
        """Mean loss terms and gradient norms of the steps since the last call, over all ranks."""
        self.reduce()
        means = {name: self.totals[name] / self.totals["steps"] for name in STEP_METRICS}
        self.totals = dict.fromkeys(self.totals, 0.0)
        return means

    def state(self) -> dict:
        """Return everything that a checkpoint needs to resume, including `exported_state`. `reduce` must come first.
        The next step changes the returned tensors.
        """
        return {
            **self.exported_state(),
            "weights": self.network.state_dict(),
            "num_averaged": self.num_averaged,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "totals": self.totals,
            "bad_steps": int(self.bad_steps),
            "skipped_steps": int(self.skipped_steps),
        }

    def exported_state(self) -> dict:
        """What an export needs: the averaged weights and the settings and step they come from."""
        settings = self.settings.model_dump(mode="json")
        return {"network": self.average.state_dict(), "settings": settings, "step": self.step}

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Start with the averaged weights of another training. UserError if its crossover network has another size."""
        then, now = (size_of(state, "crossover.") for state in (weights, self.network.state_dict()))
        if then != now:
            raise UserError(
                f"the crossover network of {self.settings.weights} has the width {then[0]} and {then[1]} layers, not "
                f"{now[0]} and {now[1]}: name these with --width and --layers, or --weights None"
            )
        for network in (self.network, self.average):
            network.load_state_dict(weights)

    def load_state(self, state: dict) -> None:
        """Resume from what `state` returned, on any number of ranks."""
        self.load_weights(state["network"])
        self.network.load_state_dict(state["weights"])
        self.num_averaged = state["num_averaged"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.totals = state["totals"]
        self._clear_sums()
        self.bad_steps.fill_(state["bad_steps"])
        self.skipped_steps.fill_(state["skipped_steps"])
        self.set_step(state["step"])


def loss_terms(
    network: nn.Module, graphs: GraphBatch, states: StateBatch | None, pairs: PairBatch | None, fewest: Tensor,
    conflicts: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the loss terms (scalars) of a ColoringNetwork, each divided by the number of graphs, states or pairs of
    the step on all ranks. A term is 0 if this rank has no states or pairs for it. fewest, conflicts (2, G): results
    with the rule plus and minus SIGMA times epsilon. `gap` is the mean number of colors above the best known.
    """
    rule, predictions, expected = network(states and states.inputs, pairs and pairs.data)
    terms = dict.fromkeys(LOSS_WEIGHTS, torch.zeros((), device=rule.device))
    conflicts = conflicts.where(conflicts < NONE_FOUND, 0)  # a search that saves a color in its last round has none
    plus, minus = fewest + PER_LOG_CONFLICT * conflicts.log1p()  # (G,) each, costs
    advantage = (minus - plus) / ((minus - plus).abs() + ADVANTAGE_SCALE)  # (G,) advantage of plus, between -1 and 1
    # The gradient is that of the expected cost, up to a factor. Products and sums stay float32 under autocast.
    surrogate = -advantage * (graphs.epsilon * rule).sum(1)
    gap = fewest.mean(0) - graphs.num_colors + (surrogate - surrogate.detach())
    terms["gap"] = gap.sum() / graphs.num_graphs
    if states:
        terms |= prediction_terms(predictions, states)
    if pairs:
        terms["crossover"] = squared_errors(expected, pairs.data).sum() / pairs.num_pairs
    return terms


def prediction_terms(predicted: PredictionOutputs, states: StateBatch) -> dict[str, Tensor]:
    """The loss terms of PredictionNetwork. `saved` is a negative log-likelihood, as in survival analysis."""
    has_saved = (states.saved[:, None] >= thresholds(states.saved.device)).float()  # (S, T)
    had_saved = torch.cat([torch.ones_like(has_saved[:, :1]), has_saved[:, :-1]], 1)  # for the threshold before
    entropy = binary_cross_entropy_with_logits(predicted.saved_logits, has_saved, reduction="none")
    terms = {
        "saved": (entropy * had_saved).sum(1),
        "graph_type": cross_entropy(
            predicted.graph_type_logits, states.graph_type, ignore_index=UNKNOWN_TYPE, reduction="none"
        ),
        "rounds": smooth_l1_loss(predicted.log_rounds, states.log_rounds, reduction="none", beta=0.2),
    }
    return {name: values.sum() / states.num_states for name, values in terms.items()}


@cache
def thresholds(device: torch.device) -> Tensor:
    """SAVED as a tensor on a device. It is cached, because a copy in every step would wait for the GPU."""
    return torch.tensor(SAVED, device=device)


def learning_rate(step: int, peak: float, warmup_steps: int, steps: int) -> float:
    """Linear warm-up to `peak`, then half a cosine down to zero at `steps` (Loshchilov and Hutter 2017)."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def _precision(requested: str, device: torch.device) -> torch.dtype:
    if requested != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[requested]
    if device.type == "cpu":
        return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
