"""Leave torch's Python functions for its meta device out of `import torch` until something needs them.

They say which shape a result would have, to transformers and torch's compiler, and take a quarter of that import. The
models that ship do without; an operation that misses its function raises NotImplementedError.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_FUNCTIONS = "torch._meta_registrations"
"""The module whose import registers them."""
_NEED_THEM = frozenset(
    ["torch._decomp", "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "accelerate", "transformers"]
)


class _Deferral:
    """Finds an empty module in place of the functions, and imports them before what needs them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _FUNCTIONS:
            return ModuleSpec(fullname, self)  # type: ignore[arg-type]  # importlib.abc takes 15 ms to import
        if fullname in _NEED_THEM:
            self._end()
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the making of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty; whoever asks it for a name gets that of the functions."""

        def __getattr__(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            self._end()
            return getattr(sys.modules[_FUNCTIONS], name)

        module.__dict__["__getattr__"] = __getattr__

    def _end(self) -> None:
        """Find nothing from now on, and import the functions if torch was imported without them."""
        with self._lock:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                if sys.modules.pop(_FUNCTIONS, None) is not None:
                    importlib.import_module(_FUNCTIONS)


def defer() -> None:
    """Have `import torch` leave them out from now on."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Deferral())
