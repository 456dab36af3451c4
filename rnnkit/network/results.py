"""What forward, backward and infer return."""

from __future__ import annotations

from typing import Generic, NamedTuple

from rnnkit.call.workspace import Workspace
from rnnkit.types import Floats, States


class Forward(NamedTuple, Generic[States]):
    """Results of `forward`: y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H) or None, and the workspace for `backward`."""

    y: Floats
    hy: Floats
    cy: States
    workspace: Workspace


class Backward(NamedTuple, Generic[States]):
    """Results of `backward`: dx (T, N, I), dhx (L*D, N, P), dcx (L*D, N, H) or None, dw (num_weights,)."""

    dx: Floats
    dhx: Floats
    dcx: States
    dw: Floats


class Infer(NamedTuple, Generic[States]):
    """Results of `infer`: y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H) or None."""

    y: Floats
    hy: Floats
    cy: States


class BackwardWithInputs(NamedTuple, Generic[States]):
    """Results of `backward` for a cell with side inputs: also inputs, the gradients of the side inputs by name."""

    dx: Floats
    dhx: Floats
    dcx: States
    dw: Floats
    inputs: dict[str, Floats]
