# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Configuration of the learning computer: policy, algorithm, replay, learner.

Registries: `Policy` and `Algorithm` list what can be chosen by `kind`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from user_core.schema import NonNegative, Positive, Section

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class MlpPolicy(Section):
    """A multi-layer perceptron with a tanh-Gaussian head on the task's state vector."""

    kind: Literal['mlp'] = 'mlp'
    machine: str = 'local'
    """Where it answers observations: a key of `machines`."""
    device: Literal['cpu', 'cuda'] = 'cpu'
    """What it computes on."""
    hidden: tuple[Count, ...] = (128, 128)
    """Widths of the hidden layers."""


class CnnPolicy(Section):
    """An encoder for each camera; its features stand beside the state in an MLP policy's place."""

    kind: Literal['cnn'] = 'cnn'
    machine: str = 'local'
    """Where it answers observations: a key of `machines`."""
    device: Literal['cpu', 'cuda'] = 'cpu'
    """What it computes on."""
    hidden: tuple[Count, ...] = (128, 128)
    """Widths of the hidden layers."""
    encoder: Literal['small', 'resnet10'] = 'small'
    """small: a few convolutions from scratch; resnet10: SERL's ResNet-10 with group norm."""
    channels: tuple[Count, ...] = (16, 32, 32)
    """Channels of the small encoder's convolutions."""
    kernels: tuple[Count, ...] = (3, 3, 3)
    """Sides of their kernels, in pixels."""
    strides: tuple[Count, ...] = (2, 2, 2)
    """Their strides."""
    pool: Literal['flatten', 'keypoints', 'embedding'] = 'flatten'
    """How the convolutions' map becomes a vector. flatten: as it is; keypoints: where each channel
    looks (spatial softmax); embedding: learned weighted sums (SERL's choice behind resnet10)."""
    features: Count | None = 32
    """Features that an encoder gives for a picture; null: all that the pool gives."""
    teacher: Literal['critics', 'hindsight'] = 'critics'
    """Who trains the encoders. critics: their loss, at every update; hindsight: the places where
    demonstrations ended, before everything else: from then on the encoders rest and each picture
    is encoded once."""
    shared: bool = False
    """One encoder for all cameras instead of one each."""
    weights: str | None = None
    """File of pretrained weights of the trunk (a state dict, safetensors); null: none."""
    frozen: bool = False
    """The trunk does not learn: only what stands behind it does."""

    @model_validator(mode='after')
    def _layers_match(self) -> CnnPolicy:
        if not len(self.channels) == len(self.kernels) == len(self.strides) > 0:
            raise ValueError(
                'channels, kernels and strides must name the same layers, at least one'
            )
        if not all(side % 2 for side in self.kernels):
            raise ValueError('kernels must have odd sides')
        return self


Policy = Annotated[MlpPolicy | CnnPolicy, Field(discriminator='kind')]


class Rlpd(Section):
    """RLPD (Ball et al. 2023, arXiv 2302.02948): SAC, prior data, critic ensemble, layer norm."""

    kind: Literal['rlpd'] = 'rlpd'
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.96
    """Discount of one control step."""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Share of the critic that moves into its target at each update."""
    lr: Positive = 1e-3
    """Adam's step size, for actor, critic and temperature."""
    utd: Positive | None = 2.0
    """Critic updates owed for every new training row; null: the learner runs free."""
    actor_every: Count = 2
    """Critic updates for one update of actor and temperature."""
    batch: Count = 256
    """Rows of a batch."""
    demo_fraction: Share = 0.5
    """Share of a batch that comes from demonstrations."""
    critic_hidden: tuple[Count, ...] = (128, 128)
    """Widths of each critic's hidden layers."""
    ensemble: Count = 2
    """Critics."""
    subset: Count = 2
    """Critics, drawn anew at each update, whose minimum is the target."""
    target_entropy: float = -3.0
    """Entropy in nats that the temperature steers to."""
    alpha: Positive = 0.02
    """Temperature at the start."""
    entropy_in_backup: bool = False
    """Whether the target holds the entropy of the next action."""
    target_min: float | None = 0.0
    """Lowest target; null: none."""
    target_max: float | None = 1.0
    """Highest target; null: none."""
    max_grad_norm: Positive | None = None
    """Gradients are scaled down to this norm; null: never."""
    alpha_min: Positive = 1e-5
    """Lower bound of the temperature."""
    alpha_max: Positive = 1.0
    """Upper bound of the temperature; the learner says so when it is reached."""
    n_step: Count = 1
    """Steps whose rewards are summed before a target bootstraps, within one episode."""
    log_std_start: Annotated[float, Field(ge=-8, le=1.5)] = 0.0
    """The actor's log standard deviation before training, before tanh."""
    bc_weight: NonNegative = 0.0
    """Weight, in the actor's loss, of the squared distance to demonstrated actions."""
    bc_rows: Count | None = None
    """Training rows over which bc_weight falls linearly to zero; null: it stays."""
    bc_normalized: bool = False
    """Divides the rest of the actor's loss by the mean |Q| of the batch, as TD3+BC does."""
    warmup_actor: Literal['learn', 'imitate'] = 'learn'
    """The actor in the warm-up: learns from the critics, or only imitates the demonstrations."""
    actor_average: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Evaluation uses a running average of the actor, which takes this share of it at each of the
    actor's updates; null: the actor itself, as training always does."""
    shift_px: Annotated[int, Field(ge=0, le=16)] = 4
    """Pictures are shifted at random by up to this at each update (DrQ); 0: never."""
    max_bad_updates: Count = 20
    """Updates in a row whose gradient is not finite after which the learner gives up."""

    @model_validator(mode='after')
    def _subset_fits(self) -> Rlpd:
        if self.subset > self.ensemble:
            raise ValueError('subset must not be larger than ensemble')
        return self


Algorithm = Rlpd


class Replay(Section):
    """The store of rows on disk, in the run's folder, and its window in memory."""

    machine: str = 'local'
    """Where it writes: a key of `machines`."""
    window_rows: Count = 200_000
    """Newest training rows that the learner draws from; demonstrations stay for good."""
    memory_gb: Positive = 4.0
    """Memory for their pictures: the newest lie there, older ones are read from the store."""
    disk_gb: Positive = 20.0
    """Size of the store: beyond it the oldest rows go that are no demonstrations and that the
    learner no longer draws from."""


class Learner(Section):
    """The training loop."""

    machine: str = 'local'
    """Where it trains: a key of `machines`; reads the store there."""
    device: Literal['cpu', 'cuda'] = 'cpu'
    """What it computes on."""
    threads: Count = 1
    """CPU threads of the numerics."""
    warmup_updates: Annotated[int, Field(ge=0)] = 500
    """Updates on demonstrations alone before version 1 is published."""
    start_rows: Annotated[int, Field(ge=0)] = 100
    """Training rows before updates on them begin."""
    hindsight_updates: Count = 1500
    """Updates of encoders whose teacher is hindsight, made before everything else."""
    hindsight_every: Count | None = 1500
    """Training rows after which they learn anew, a sixth as long, and every row is encoded anew;
    null: never."""
    hindsight_rows: Count = 8000
    """Newest rows of successful training episodes that they then learn from, beside the
    demonstrations."""
    clone_updates: Annotated[int, Field(ge=0)] = 2000
    """Updates of the behaviour cloning baseline, made before the warm-up; 0: no baseline."""
    publish_every_s: Positive = 1.0
    """Time between two published versions, at least."""
    checkpoint_every_s: Positive = 30.0
    """Time between two checkpoints, at least."""
    max_backlog_updates: Count = 400
    """Lockstep: no new training episode while more updates than this are owed."""
    max_policy_lag: Count | None = None
    """Versions that a policy may be behind the learner's newest in training; further behind it
    stops answering, and the arm holds, until it has a newer one. null: any."""
    max_stale_s: NonNegative | None = None
    """Time in seconds without a sign of the learner's training after which a policy stops
    answering in training, and the arm holds, until there is one. A learner that waits for rows
    gives signs; one that is gone, out of reach or stuck gives none, and the robot would work for
    nothing. To be longer than a checkpoint takes to save. null: any."""
