"""Plugin of mypy for two things of flax that its annotations do not say; named in setup.cfg.

Records of `flax.struct.dataclass` get `replace(**fields)` when they are made, and `Module.apply` returns whatever the
called method returns, with the changed variables where `mutable` asks for them.
"""

from collections.abc import Callable

from mypy.nodes import ARG_NAMED_OPT, Argument, Var
from mypy.plugin import ClassDefContext, MethodContext, Plugin
from mypy.plugins.common import add_method_to_class
from mypy.plugins.dataclasses import dataclass_class_maker_callback
from mypy.types import AnyType, Instance, Type, TypeOfAny, get_proper_type
from mypy.typevars import fill_typevars


class FlaxPlugin(Plugin):
    """Adds `replace` to records, and says of what the methods of a module return that anything may be."""

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        return _make_record if fullname == "flax.struct.dataclass" else None

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return _apply_module if fullname.endswith((".apply", ".init_with_output")) else None


def _make_record(context: ClassDefContext) -> bool:
    if not dataclass_class_maker_callback(context):
        return False
    info = context.cls.info
    names = [field["name"] for field in info.metadata["dataclass"]["attributes"]]
    values = [Argument(Var(name), AnyType(TypeOfAny.explicit), None, ARG_NAMED_OPT) for name in names]
    add_method_to_class(context.api, context.cls, "replace", values, fill_typevars(info))
    return True


def _apply_module(context: MethodContext) -> Type:
    of = get_proper_type(context.type)
    if isinstance(of, Instance) and of.type.has_base("flax.linen.module.Module"):
        return AnyType(TypeOfAny.explicit)
    return context.default_return_type


def plugin(version: str) -> type[Plugin]:
    return FlaxPlugin
