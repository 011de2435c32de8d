# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""RLPD: soft actor-critic with a layer-normed critic ensemble, fed half with demonstrations.

With pictures, encoders stand before actor and critics and learn from the critics' loss alone
(SAC+AE, arXiv 1910.01741). As in DrQ-v2 (arXiv 2107.09645) pictures are shifted at random, the
present ones are encoded once for both losses of an update, and the next ones by the same encoders,
under the averaged target critics: target encoders (SERL) would cost another pass of all pictures.
Encoders that hindsight has taught rest: batches then hold what they saw (user_learning.hindsight).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import copy
from dataclasses import dataclass, field
import math
from pathlib import Path

import torch
from torch import Tensor

from user_core.config import Rlpd as RlpdConfig
from user_core.errors import UserError
from user_learning.augment import Shift
from user_learning.networks import AVERAGE, Actor, CriticEnsemble, Spec, critic_values, squashed


@dataclass(frozen=True)
class Batch:
    """Rows of one update: float32 tensors with the batch as first dimension, raw SI states.

    `reward` is the discounted sum over the m steps that led to `next_state` (m = 1 without n-step
    returns), `discount` is gamma^m, or 0 where the task ended (terminated) within them; a time-out
    or an abort ends the sum but does not cut the bootstrap. The first `demos_n` rows come from
    demonstrations. Pictures are uint8 [batch, height, width, 3] by camera; a state whose pictures
    were encoded when its row came is the network's input already.
    """

    state: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_state: Tensor
    demos_n: int = 0
    pictures: Mapping[str, Tensor] = field(default_factory=dict)
    next_pictures: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: str) -> Batch:
        """The same rows on a device; on the CPU the batch itself."""
        if device == 'cpu':
            return self
        return Batch(
            self.state.to(device),
            self.action.to(device),
            self.reward.to(device),
            self.discount.to(device),
            self.next_state.to(device),
            self.demos_n,
            {camera: some.to(device) for camera, some in self.pictures.items()},
            {camera: some.to(device) for camera, some in self.next_pictures.items()},
        )


class Rlpd:
    """Networks, optimisers and one update. Not thread-safe; everything random comes from
    `generator`.
    """

    def __init__(
        self,
        config: RlpdConfig,
        spec: Spec,
        hidden: Sequence[int],
        seed: int = 0,
        device: str = 'cpu',
    ) -> None:
        self.config, self.spec = config, spec
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        first = torch.Generator().manual_seed(seed)
        self.actor = make_actor(spec, hidden, first, config.log_std_start).to(device)
        if spec.taught:
            self.actor.rest()
        self.shift = Shift(config.shift_px, self.generator)
        self.critic = CriticEnsemble(spec, config.critic_hidden, config.ensemble, first).to(device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.average = copy.deepcopy(self.actor).requires_grad_(False)
        self.log_alpha = torch.tensor(math.log(config.alpha), requires_grad=True, device=device)
        self.updates = 0
        self.bad_updates = 0
        self.bad_updates_in_a_row = 0

        lr = config.lr
        encoders = self.actor.encoders
        self.actor_parameters: list[Tensor] = list(self.actor.net.parameters())
        self.encoder_parameters: list[Tensor] = (
            [p for p in encoders.parameters() if p.requires_grad] if encoders else []
        )
        self.critic_parameters: list[Tensor] = list(self.critic.parameters())
        self.target_parameters: list[Tensor] = list(self.target.parameters())
        # What of the actor changes, and its average: frozen trunks are not averaged.
        self.learned = {k: p for k, p in self.actor.named_parameters() if p.requires_grad}
        average = dict(self.average.named_parameters())
        self.average_parameters: list[Tensor] = [average[k] for k in self.learned]
        self.optimizers = {
            'actor': torch.optim.Adam(self.actor_parameters, lr, fused=True),
            'critic': torch.optim.Adam(
                [*self.critic_parameters, *self.encoder_parameters], lr, fused=True
            ),
            'alpha': torch.optim.Adam([self.log_alpha], lr, fused=True),
        }
        # The critics' parameters cut from the graph: the actor's loss must not spend time on their
        # gradients.
        self.frozen = [
            (w.detach(), b.detach())
            for w, b in zip(self.critic.weights, self.critic.biases, strict=True)
        ]

    @property
    def alpha(self) -> float:
        """The temperature."""
        return math.exp(self.log_alpha.item())

    def published(self) -> dict[str, Tensor]:
        """What policies get: the newest actor, which explores, and its average, which is
        evaluated, if there is one.
        """
        tensors = dict(self.actor.state_dict())
        if self.config.actor_average is not None:
            pairs = zip(self.learned, self.average_parameters, strict=True)
            tensors |= {f'{AVERAGE}{k}': v for k, v in pairs}
        return tensors

    def update(self, batch: Batch, train_rows: int = 0, warm_up: bool = False) -> dict[str, float]:
        """One update of the critics and, every `actor_every`, one of actor and temperature.

        `train_rows` places the update in the decay of the cloning term; in the warm-up the actor
        may only imitate.

        A step whose gradient is not finite changes nothing and is counted; `max_bad_updates` in a
        row raise UserError. The update number counts either way, so that a bad batch is not drawn
        again.
        """
        self.updates += 1
        with torch.no_grad():
            next_x = self.actor.see(batch.next_state, self.shift(batch.next_pictures))
        x = self.actor.see(batch.state, self.shift(batch.pictures))
        numbers: dict[str, float] = {}
        good = self._update_critic(batch, x, next_x, numbers)
        if good and self.updates % self.config.actor_every == 0:
            # DrQ-v2: the actor sees the features that the critics' step began with, as constants.
            good = self._update_actor(batch, x.detach(), train_rows, warm_up, numbers)
        self.bad_updates += not good
        self.bad_updates_in_a_row = 0 if good else self.bad_updates_in_a_row + 1
        if self.bad_updates_in_a_row >= self.config.max_bad_updates:
            raise UserError(
                f'{self.bad_updates_in_a_row} updates in a row had a gradient that is not finite',
                'a row or a weight is not a number, or the learning rate is too high',
                'look at the losses and at the stored rows, then restart from an older checkpoint',
            )
        return numbers

    # ------------------------------------------------------------------ critics

    @torch.no_grad()
    def targets(
        self, batch: Batch, next_x: Tensor, noise: Tensor, members: Tensor | None
    ) -> Tensor:
        """Bootstrapped targets [batch].

        y = r + discount * (min_{i in M} Q'_i(s', a') - [alpha * log pi(a'|s')]),  a' ~ pi(s')
        M: random subset of the target critics (REDQ, arXiv 2101.05982, eq. 1); the entropy term is
        optional (RLPD, section 4.4). Clipped to the returns that the reward allows.
        """
        action, log_prob = squashed(*self.actor.head(next_x), noise)
        value = self.target(next_x, action, members).amin(0)
        if self.config.entropy_in_backup:
            value = value - self.log_alpha.exp() * log_prob
        y = batch.reward + batch.discount * value
        low, high = self.config.target_min, self.config.target_max
        return y if low is None and high is None else y.clamp(low, high)

    def critic_loss(self, x: Tensor, action: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and the values [E, batch] behind it."""
        q = self.critic(x, action)
        # L = sum_i mean_batch (Q_i(s, a) - y)^2
        return (q - y).square().mean(1).sum(), q.detach()

    def _update_critic(
        self, batch: Batch, x: Tensor, next_x: Tensor, numbers: dict[str, float]
    ) -> bool:
        config = self.config
        members = None
        if config.subset < config.ensemble:
            order = torch.randperm(config.ensemble, generator=self.generator, device=self.device)
            members = order[: config.subset]
        y = self.targets(batch, next_x, self._noise(len(x)), members)
        loss, q = self.critic_loss(x, batch.action, y)
        if not self._step('critic', [*self.critic_parameters, *self.encoder_parameters], loss):
            return False
        with torch.no_grad():
            # Q' <- (1 - tau) Q' + tau Q
            torch._foreach_lerp_(self.target_parameters, self.critic_parameters, config.tau)
        if self.updates % config.actor_every == 0:
            numbers.update(critic_loss=loss.item(), q=q.mean().item())
        return True

    # ------------------------------------------------------------------ actor and temperature

    def actor_loss(
        self, batch: Batch, x: Tensor, noise: Tensor, bc_weight: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Loss and the policy's entropy estimate, -mean log pi.

        L = mean (alpha * log pi(a|s) - mean_i Q_i(s, a)) / z,  a ~ pi(s)          (SAC, RLPD)
          + bc_weight * mean over demonstrations of |tanh(mu(s)) - a|^2            (TD3+BC)
        z = mean |Q| of the batch if bc_normalized, else 1    (arXiv 2106.06860, eq. 3 and 5).
        """
        mean, log_std = self.actor.head(x)
        action, log_prob = squashed(mean, log_std, noise)
        q = critic_values(self.frozen, torch.cat([x, action], -1)).mean(0)
        loss = (self.log_alpha.detach().exp() * log_prob - q).mean()
        if self.config.bc_normalized:
            loss = loss / q.detach().abs().mean().clamp_min(0.05)
        if bc_weight:
            loss = loss + bc_weight * self.clone_loss(batch, mean)
        return loss, -log_prob.detach().mean()

    def clone_loss(self, batch: Batch, mean: Tensor) -> Tensor:
        """Mean over the batch's demonstrations of |tanh(mu(s)) - a|^2; 0 without any."""
        n = batch.demos_n
        if not n:
            return mean.new_zeros(())
        return (torch.tanh(mean[:n]) - batch.action[:n]).square().sum(-1).mean()

    def bc_weight(self, train_rows: int) -> float:
        """Weight of the cloning term after this many training rows."""
        start, over = self.config.bc_weight, self.config.bc_rows
        return start if over is None else start * max(0.0, 1.0 - train_rows / over)

    def alpha_loss(self, entropy: Tensor) -> Tensor:
        """L = alpha * (H - H_target): alpha falls while the policy's entropy is above its target
        (SAC, eq. 18).
        """
        return self.log_alpha.exp() * (entropy - self.config.target_entropy)

    def _update_actor(
        self, batch: Batch, x: Tensor, train_rows: int, warm_up: bool, numbers: dict[str, float]
    ) -> bool:
        config = self.config
        if warm_up and config.warmup_actor == 'imitate':
            loss = self.clone_loss(batch, self.actor.head(x)[0])
            good = self._step('actor', self.actor_parameters, loss)
            self.average.load_state_dict(self.actor.state_dict())
            numbers['actor_loss'] = loss.item()
            return good
        loss, entropy = self.actor_loss(batch, x, self._noise(len(x)), self.bc_weight(train_rows))
        if not self._step('actor', self.actor_parameters, loss):
            return False
        if not self._step('alpha', [self.log_alpha], self.alpha_loss(entropy)):
            return False
        with torch.no_grad():
            self.log_alpha.clamp_(math.log(config.alpha_min), math.log(config.alpha_max))
            if config.actor_average is not None:
                rate = config.actor_average
                learned: list[Tensor] = list(self.learned.values())
                torch._foreach_lerp_(self.average_parameters, learned, rate)
        numbers.update(actor_loss=loss.item(), entropy=entropy.item(), alpha=self.alpha)
        return True

    # ------------------------------------------------------------------ means

    def _noise(self, rows: int) -> Tensor:
        return torch.randn(rows, self.spec.action_n, generator=self.generator, device=self.device)

    def _step(self, name: str, parameters: list[Tensor], loss: Tensor) -> bool:
        """One Adam step on the gradient of loss; False (and no step) when the gradient is not
        finite.
        """
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.stack(torch._foreach_norm(gradients)).norm().item()
        if not math.isfinite(norm):
            return False
        limit = self.config.max_grad_norm
        if limit is not None and norm > limit:
            torch._foreach_mul_(gradients, limit / norm)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # The fused Adam reads both as flat memory: another layout would be another gradient.
            same = gradient.stride() == parameter.stride()
            parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)
        self.optimizers[name].step()
        for parameter in parameters:
            parameter.grad = None  # the next gradients take this memory while it is in the cache
        return True

    def state_dict(self) -> dict[str, Tensor]:
        """Everything an update depends on, as named tensors (no pickle): networks, Adam,
        temperature, noise.
        """
        state = {'log_alpha': self.log_alpha.detach(), 'generator': self.generator.get_state()}
        state['updates'] = torch.tensor(
            [self.updates, self.bad_updates, self.bad_updates_in_a_row]
        )
        for name in ('actor', 'critic', 'target', 'average'):
            for key, value in getattr(self, name).state_dict().items():
                state[f'{name}.{key}'] = value
        for name, optimizer in self.optimizers.items():
            for index, moments in optimizer.state_dict()['state'].items():
                for key, value in moments.items():
                    state[f'adam.{name}.{index}.{key}'] = value
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores what `state_dict` gave. Raises UserError when it belongs to other networks."""
        try:
            for name in ('actor', 'critic', 'target', 'average'):
                prefix = f'{name}.'
                part = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
                getattr(self, name).load_state_dict(part)
        except RuntimeError as error:
            raise UserError(
                'the checkpoint does not fit the networks of the config',
                str(error).splitlines()[-1].strip(),
                'resume with the config that wrote it, or start a new run',
            ) from error
        with torch.no_grad():
            self.log_alpha.copy_(state['log_alpha'])
        if state['generator'].shape == self.generator.get_state().shape:
            self.generator.set_state(state['generator'])
        else:  # another kind of device draws other numbers
            self.generator.manual_seed(self.generator.initial_seed() + int(state['updates'][0]))
        self.updates, self.bad_updates, self.bad_updates_in_a_row = state['updates'].tolist()
        for name, optimizer in self.optimizers.items():
            moments: dict[int, dict[str, Tensor]] = {}
            parameters = optimizer.param_groups[0]['params']
            for key, value in state.items():
                if key.startswith(f'adam.{name}.'):
                    index, entry = key.removeprefix(f'adam.{name}.').split('.')
                    value = value.clone()
                    if value.dim():  # a moment, in its parameter's layout
                        value = torch.empty_like(parameters[int(index)]).copy_(value)
                    moments.setdefault(int(index), {})[entry] = value
            optimizer.load_state_dict(
                {'state': moments, 'param_groups': optimizer.state_dict()['param_groups']}
            )


def make_actor(
    spec: Spec, hidden: Sequence[int], generator: torch.Generator, log_std: float = 0.0
) -> Actor:
    """A new actor, with pretrained trunks where the policy names a file."""
    actor = Actor(spec, hidden, generator, log_std)
    if spec.sight and spec.sight.config.weights and actor.encoders:
        actor.encoders.load_trunk(Path(spec.sight.config.weights))
    return actor
