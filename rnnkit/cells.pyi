# Types of `cells.py`: its functions are written for the compiler and have no annotations.

from abc import ABCMeta
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

_Cell = TypeVar("_Cell", bound=tuple[Any, ...])

class Activation(Protocol, metaclass=ABCMeta):
    def value(self, x: float, /) -> float: ...
    def slope(self, y: float, /) -> float: ...

class Affine(NamedTuple):
    alpha: float = 1.0
    beta: float = 0.0
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class Elu(NamedTuple):
    alpha: float = 1.0
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class HardSigmoid(NamedTuple):
    alpha: float = 0.2
    beta: float = 0.5
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class LeakyRelu(NamedTuple):
    alpha: float = 0.01
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class Relu(NamedTuple):
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class ScaledTanh(NamedTuple):
    alpha: float = 1.0
    beta: float = 1.0
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class Sigmoid(NamedTuple):
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class Softplus(NamedTuple):
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class Softsign(NamedTuple):
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class Tanh(NamedTuple):
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class ThresholdedRelu(NamedTuple):
    alpha: float = 1.0
    def value(self, x: float) -> float: ...
    def slope(self, y: float) -> float: ...

class ActivatedLSTM(NamedTuple):
    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    output: Activation = Tanh()

class CoupledLSTM(NamedTuple):
    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    output: Activation = Tanh()

class AUGRU(NamedTuple): ...

class CoRNN(NamedTuple):
    dt: float = 0.042
    gamma: float = 2.7
    epsilon: float = 4.7

class FastGRNN(NamedTuple): ...

class IndRNN(NamedTuple):
    activation: Activation = Relu()

class JANET(NamedTuple):
    beta: float = 1.0

class LEM(NamedTuple):
    dt: float = 1.0

class LayerNormGRU(NamedTuple):
    eps: float = 1e-5
    recurrent_dropout: float = 0.0
    zoneout: float = 0.0

class LayerNormLSTM(NamedTuple):
    eps: float = 1e-5
    recurrent_dropout: float = 0.0
    zoneout: float = 0.0
    zoneout_c: float = 0.0

class LiGRU(NamedTuple):
    candidate: Activation = Relu()

class MinGRU(NamedTuple): ...
class MinimalGatedUnit(NamedTuple): ...
class MinimalRNN(NamedTuple): ...

class MultiHeadSLSTM(NamedTuple):
    sigmoid_forget: bool = False

class MultiplicativeLSTM(NamedTuple): ...
class NBR(NamedTuple): ...

class PeepholeLSTM(NamedTuple):
    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    output: Activation = Tanh()

class RAN(NamedTuple):
    output: Activation = Tanh()

class RegularizedGRU(NamedTuple):
    recurrent_dropout: float = 0.0
    zoneout: float = 0.0

class RegularizedLSTM(NamedTuple):
    recurrent_dropout: float = 0.0
    zoneout: float = 0.0
    zoneout_c: float = 0.0

class SLSTM(NamedTuple):
    sigmoid_forget: bool = False

class STAR(NamedTuple): ...
class UGRNN(NamedTuple): ...

class VariationalGRU(NamedTuple):
    recurrent_dropout: float = 0.0

class VariationalLSTM(NamedTuple):
    recurrent_dropout: float = 0.0

class CellError(TypeError): ...

class Gate(NamedTuple):
    name: str
    multiplies: str | None = "h"
    apart: str | None = None
    input: bool = True
    heads: int = 1

class Vector(NamedTuple):
    name: str
    low: float | None = None
    high: float | None = None

class Scalar(NamedTuple):
    name: str
    low: float | None = None
    high: float | None = None

class Input(NamedTuple):
    name: str

class Noise(NamedTuple):
    name: str
    rate: str
    per_step: bool = False
    choice: bool = False

class _Stage(NamedTuple):
    function: object
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    is_gradient: bool

def cell(
    gates: str | Sequence[str | Gate],
    states: str | Sequence[str] = "",
    vectors: str | Sequence[str | Vector] = "",
    slots: str | Sequence[str] = "",
    smooth: bool = True,
    scalars: str | Sequence[str | Scalar] = "",
    inputs: str | Sequence[str | Input] = "",
    noises: Sequence[Noise] = (),
) -> Callable[[type[_Cell]], type[_Cell]]: ...
def derivative(
    function: Callable[..., Any], **forms: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def derived_source(kind: Any) -> str: ...
def forward(writes: str | Sequence[str]) -> Callable[[Callable[..., Any]], _Stage]: ...
def gradient(writes: str | Sequence[str]) -> Callable[[Callable[..., Any]], _Stage]: ...
def clip(x: float, low: float, high: float) -> float: ...
def exp(x: float) -> float: ...
def fma(a: float, b: float, c: float) -> float: ...
def mean(x: float) -> float: ...
def sigmoid(x: float) -> float: ...
def slope(activation: Activation, y: float) -> float: ...
def step(cell: Any, backend: str) -> Callable[..., tuple[Any, ...]]: ...
def unrolled(desc: Any, backend: str) -> Callable[..., Any]: ...
def softplus(x: float) -> float: ...
def tanh(x: float) -> float: ...
def value(activation: Activation, x: float) -> float: ...
