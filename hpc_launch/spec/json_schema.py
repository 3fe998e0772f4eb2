"""The JSON Schema of a file's Struct type, for editors: what `spec.reader` takes, in draft 2020-12.

Made from the same view of the types as the reader's, because msgspec's own generator knows neither short forms nor
units, and refuses limits on a field that may be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import NODEFAULT, Struct, json
from msgspec.structs import FieldInfo

from hpc_launch.spec.type_hints import Member, fields_of, members
from hpc_launch.spec.units import UNITS

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_TYPES: dict[Any, Schema] = {
    # The reader keeps what stands in a field of text as it was written, also what YAML takes for a number.
    str: {"type": ["string", "number", "boolean"]},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}
_LIMITS = (
    ("ge", "minimum"),
    ("gt", "exclusiveMinimum"),
    ("le", "maximum"),
    ("lt", "exclusiveMaximum"),
    ("multiple_of", "multipleOf"),
)
_PROBES = {"string": "text", "integer": 7, "number": 7.5, "boolean": True, "array": ["text"]}
"""One value of each JSON type that a short form may have."""


def json_schema(type_: type[Struct], *, title: str | None = None) -> Schema:
    """The schema of a file that holds one `type_`. No `$id`: it is used from a path or a URL alike.

    A short form is found by asking `__short_forms__` about a value of each JSON type; where it hands the value
    through to a key, the schema of that key holds for the short form too.
    """
    definitions: dict[str, Schema] = {}
    root = _struct(type_, definitions)
    head: Schema = {"$schema": DRAFT, "title": title or type_.__name__}
    return {**head, **root, **({"$defs": dict(sorted(definitions.items()))} if definitions else {})}


def _struct(type_: type[Struct], definitions: dict[str, Schema]) -> Schema:
    """The mapping of a Struct, without its short forms."""
    fields = fields_of(type_)
    schema: Schema = {"type": "object", "additionalProperties": False}
    if type_.__doc__:
        schema["description"] = " ".join(type_.__doc__.split())
    schema["properties"] = {key: _field(info, definitions) for key, info in fields.items()}
    schema.update(_marked(fields))
    required = [key for key, info in fields.items() if info.required]
    return {**schema, **({"required": required} if required else {})}


def _marked(fields: Mapping[str, FieldInfo]) -> Schema:
    """The keys with a mark (`spec.merge_operators`), by which a layer changes a list or mapping of those below it."""
    kinds = {key: {member.kind for member in members(info.type)} for key, info in fields.items()}
    lists = "|".join(key for key, kind in kinds.items() if list in kind)
    either = "|".join(key for key, kind in kinds.items() if kind & {list, dict})
    patterns: Schema = {}
    if lists:
        patterns[rf"^(\+({lists})|({lists})\+)$"] = {"type": "array"}
    if either:
        patterns[f"^({either})-$"] = {"type": "array"}
        patterns[f"^({either})=$"] = {"type": ["array", "object"]}
    return {"patternProperties": patterns} if patterns else {}


def _field(info: FieldInfo, definitions: dict[str, Schema]) -> Schema:
    alternatives = members(info.type)
    metas = [meta for member in alternatives for meta in member.metas]
    schema = _any_of(alternatives, definitions, null=not info.required)
    for name in ("description", "title", "examples"):
        told = [getattr(meta, name) for meta in metas if getattr(meta, name)]
        if told:
            schema[name] = told[-1]
    default = _default(info, alternatives)
    if default is not None:
        schema["default"] = default
    for meta in metas:
        schema.update(meta.extra_json_schema or {})
    return schema


def _default(info: FieldInfo, alternatives: tuple[Member, ...]) -> Any:
    """The default as the file would say it; None for none, null, and whole mappings of further keys."""
    value = info.default_factory() if info.default_factory is not NODEFAULT else info.default
    if value is NODEFAULT or value is None or isinstance(value, (Struct, dict)):
        return None
    unit = next((member.unit for member in alternatives if member.unit), None)
    return UNITS[unit].write(value) if unit else json.decode(json.encode(value))


def _any_of(alternatives: tuple[Member, ...], definitions: dict[str, Schema], *, null: bool = False) -> Schema:
    """The schema for any one of the alternatives, as flat as it can be said; `null` lets null stand too."""
    schemas = [schema for member in alternatives for schema in _member(member, definitions)]
    if {} in schemas:
        return {}
    if null:
        schemas.append({"type": "null"})
    unique = [schema for at, schema in enumerate(schemas) if schema not in schemas[:at]]
    if len(unique) == 1:
        return dict(unique[0])
    if all(set(schema) == {"type"} for schema in unique):
        names = dict.fromkeys(name for schema in unique for name in _listed(schema["type"]))
        return {"type": [name for name in names if name != "integer" or "number" not in names]}
    return {"anyOf": unique}


def _member(member: Member, definitions: dict[str, Schema]) -> list[Schema]:
    """The schemas of one alternative: one, and one for each short form of a Struct."""
    kind, args, metas = member
    if member.is_struct:
        return _reference(kind, definitions)
    if kind is Literal:
        return [{"enum": list(args)}]
    if member.unit is not None:
        unit = UNITS[member.unit]
        number: Schema = {"type": "integer", "minimum": unit.minimum}
        if unit.maximum is not None:
            number["maximum"] = unit.maximum
        return [number, {"type": "string", "pattern": unit.pattern}]
    if kind is dict:
        schema: Schema = {"type": "object"}
        if args and members(args[1])[0].kind is not Any:
            schema["additionalProperties"] = _any_of(members(args[1]), definitions, null=True)
        patterns = [meta.pattern for one in members(args[0]) for meta in one.metas if meta.pattern] if args else []
        if patterns:
            schema["propertyNames"] = {"pattern": patterns[-1]}
    elif kind in (list, tuple):
        schema = {"type": "array"}
        if kind is tuple and args[-1] is not ...:
            schema["prefixItems"] = [_any_of(members(item), definitions) for item in args]
            schema.update(items=False, minItems=len(args))
        elif args:
            schema["items"] = _any_of(members(args[0]), definitions)
    else:
        schema = dict(_TYPES[kind])
    for meta in metas:
        schema.update(_limits(kind, meta))
    return [schema]


def _limits(kind: Any, meta: Any) -> Schema:
    names: Any = ()
    if kind in (int, float):
        names = _LIMITS
    elif kind is str:
        names = (("pattern", "pattern"), ("min_length", "minLength"), ("max_length", "maxLength"))
    elif kind is dict:
        names = (("min_length", "minProperties"), ("max_length", "maxProperties"))
    elif kind in (list, tuple):
        names = (("min_length", "minItems"), ("max_length", "maxItems"))
    return {there: getattr(meta, here) for here, there in names if getattr(meta, here) is not None}


def _reference(type_: type[Struct], definitions: dict[str, Schema]) -> list[Schema]:
    if type_.__name__ not in definitions:
        # Entered before it is made, so that a type may hold itself.
        definitions[type_.__name__] = {}
        definitions[type_.__name__] = _struct(type_, definitions)
    return [{"$ref": f"#/$defs/{type_.__name__}"}, *_short_forms(type_, definitions)]


def _short_forms(type_: type[Struct], definitions: dict[str, Schema]) -> list[Schema]:
    shorthand = getattr(type_, "__short_forms__", None)
    fields = fields_of(type_)
    schemas: list[Schema] = []
    for name, probe in _PROBES.items():
        mapping = shorthand(probe) if shorthand is not None else None
        if not isinstance(mapping, Mapping):
            continue
        key = next((key for key, value in mapping.items() if value is probe and key in fields), None)
        parts = _any_of(members(fields[key].type), definitions) if key is not None else {}
        allowed = [part for part in parts.get("anyOf", [parts]) if _may_be(part, name)]
        schemas.extend(
            {**part, "type": name} if "$ref" not in part and "enum" not in part else part for part in allowed
        )
    return schemas


def _may_be(schema: Schema, name: str) -> bool:
    """Whether a value of the JSON type `name` may fit `schema`."""
    if "enum" in schema:
        return name == "string"
    return name in _listed(schema.get("type", name))


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
