"""A model that is ready to serve chunk KV: one bundle for answers and background prefill."""

from __future__ import annotations

from dataclasses import dataclass

from desk_rag.kv.calibration.gate import GateReport
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.prefix_variants.variants import PrefixVariants
from desk_rag.kv.quant import QuantScheme
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.types import Namespace
from desk_rag.model.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class ServingModel:
    """A model with all that depends on it alone: prefilled prefixes, quantization, namespaces."""

    model: LanguageModel
    prefix_variants: PrefixVariants
    gate: GateReport
    drift_epoch: int = 0
    shift: PlaceShift | None = None
    """Added to chunks while they are placed, on the model's device; None if none was learned (`desk-rag adapt`)."""
    auxiliary: ServingModel | None = None
    """The model that selects tokens for recompute, if the settings ask for one; it may share `model`."""

    @property
    def prefix(self) -> PrefixKV:
        """KV of the shared prefix."""
        return self.prefix_variants.variants[0].prefix

    @property
    def namespace(self) -> Namespace:
        """Namespace of plain chunk KV."""
        return self.prefix_variants.variants[0].namespace

    @property
    def auxiliary_namespace(self) -> Namespace | None:
        """Namespace of the auxiliary's chunk KV; None without one, and if this model's own serves it."""
        other = None if self.auxiliary is None else self.auxiliary.namespace
        return None if other == self.namespace else other

    @property
    def scheme(self) -> QuantScheme:
        """Quantization of chunk KV, as the quality gate chose it."""
        return self.gate.scheme
