"""JSON Schema (draft 2020-12) of a Struct type, for editors: it describes what `job.reader` accepts.

We use the reader's view of the types because msgspec's own generator does not know short forms or units, and rejects
limits on a nullable field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import NODEFAULT, Struct, json
from msgspec.structs import FieldInfo

from hpc_launch.job.type_hints import Member, descriptions, fields_of, members
from hpc_launch.job.units import UNITS
from hpc_launch.plugins.entry_points import NAME

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_TYPES: dict[Any, Schema] = {
    # The reader keeps a text field as written, even if YAML would parse it as a number.
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
_SAMPLE_VALUES = {"string": "text", "integer": 7, "number": 7.5, "boolean": True, "array": ["text"]}
"""A value of each JSON type that a short form may have."""


def json_schema(type_: type[Struct], *, title: str | None = None) -> Schema:
    """The schema of a file that contains one `type_`. It has no `$id`, so that it works from a path or a URL.

    Short forms are found by calling `__short_forms__` with a value of each JSON type. If it passes the value through to
    a key, that key's schema also applies to the short form.
    """
    definitions: dict[str, Schema] = {}
    root = _struct(type_, definitions)
    head: Schema = {"$schema": DRAFT, "title": title or type_.__name__}
    return {**head, **root, **({"$defs": dict(sorted(definitions.items()))} if definitions else {})}


def _struct(type_: type[Struct], definitions: dict[str, Schema]) -> Schema:
    """Schema of a Struct's mapping, without its short forms."""
    fields = fields_of(type_)
    schema: Schema = {"type": "object", "additionalProperties": False}
    if type_.__doc__:
        schema["description"] = " ".join(type_.__doc__.split())
    texts = descriptions(type_)
    schema["properties"] = {key: _field(info, texts.get(key), definitions) for key, info in fields.items()}
    schema.update(_merge_operator_keys(fields))
    required = [key for key, info in fields.items() if info.required]
    return {**schema, **({"required": required} if required else {})}


def _merge_operator_keys(fields: Mapping[str, FieldInfo]) -> Schema:
    """Patterns for keys with a merge operator (`job.merge`), which change a list or mapping of lower
    layers."""
    kinds = {key: {member.kind for member in members(info.type)} for key, info in fields.items()}
    lists = "|".join(key for key, kind in kinds.items() if list in kind)
    containers = "|".join(key for key, kind in kinds.items() if kind & {list, dict})
    patterns: Schema = {}
    if lists:
        patterns[rf"^(\+({lists})|({lists})\+)$"] = {"type": "array"}
    if containers:
        patterns[f"^({containers})-$"] = {"type": "array"}
        patterns[f"^({containers})=$"] = {"type": ["array", "object"]}
    return {"patternProperties": patterns} if patterns else {}


def _field(info: FieldInfo, text: str | None, definitions: dict[str, Schema]) -> Schema:
    alternatives = members(info.type)
    metas = [meta for member in alternatives for meta in member.metas]
    schema = _any_of(alternatives, definitions, null=not info.required)
    for name in ("description", "title", "examples"):
        values = [getattr(meta, name) for meta in metas if getattr(meta, name)]
        values += [text] if text and name == "description" else []
        if values:
            schema[name] = values[-1]
    default = _default(info, alternatives)
    if default is not None:
        schema["default"] = default
    for meta in metas:
        schema.update(meta.extra_json_schema or {})
    return schema


def _default(info: FieldInfo, alternatives: tuple[Member, ...]) -> Any:
    """The default as written in a file. None if there is no default, or it is null or a mapping."""
    value = info.default_factory() if info.default_factory is not NODEFAULT else info.default
    if value is NODEFAULT or value is None or isinstance(value, (Struct, dict)):
        return None
    unit = next((member.unit for member in alternatives if member.unit), None)
    return UNITS[unit].write(value) if unit else json.decode(json.encode(value))


def _any_of(alternatives: tuple[Member, ...], definitions: dict[str, Schema], *, null: bool = False) -> Schema:
    """Schema for any of the alternatives, as flat as possible. `null` also allows null."""
    schemas = [schema for member in alternatives for schema in _member(member, definitions)]
    if {} in schemas:
        return {}
    if null:
        schemas.append({"type": "null"})
    unique = [schema for at, schema in enumerate(schemas) if schema not in schemas[:at]]
    if len(unique) == 1:
        return dict(unique[0])
    if all(set(schema) == {"type"} for schema in unique):
        names = dict.fromkeys(name for schema in unique for name in _as_list(schema["type"]))
        return {"type": [name for name in names if name != "integer" or "number" not in names]}
    return {"anyOf": unique}


def _member(member: Member, definitions: dict[str, Schema]) -> list[Schema]:
    """Schemas of one alternative: its own, and one for each short form of a Struct."""
    kind, args, metas = member
    if member.is_struct:
        return _reference(kind, definitions)
    if kind is Literal:
        of_packages: list[Schema] = [{"type": "string", "pattern": f"^{NAME}$"}] if member.plugins else []
        return [{"enum": list(args)}, *of_packages]
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
        keys = members(args[0]) if args else ()
        patterns = [meta.pattern for one in keys for meta in one.metas if meta.pattern]
        if patterns:
            schema["propertyNames"] = {"pattern": patterns[-1]}
        elif any(one.plugins for one in keys):
            schema["propertyNames"] = _any_of(keys, definitions)
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
    return {
        schema_name: getattr(meta, meta_name)
        for meta_name, schema_name in names
        if getattr(meta, meta_name) is not None
    }


def _reference(type_: type[Struct], definitions: dict[str, Schema]) -> list[Schema]:
    if type_.__name__ not in definitions:
        # Entered before it is built, so that a type may contain itself.
        definitions[type_.__name__] = {}
        definitions[type_.__name__] = _struct(type_, definitions)
    return [{"$ref": f"#/$defs/{type_.__name__}"}, *_short_forms(type_, definitions)]


def _short_forms(type_: type[Struct], definitions: dict[str, Schema]) -> list[Schema]:
    shorthand = getattr(type_, "__short_forms__", None)
    fields = fields_of(type_)
    schemas: list[Schema] = []
    for name, sample in _SAMPLE_VALUES.items():
        mapping = shorthand(sample) if shorthand is not None else None
        if not isinstance(mapping, Mapping):
            continue
        key = next((key for key, value in mapping.items() if value is sample and key in fields), None)
        parts = _any_of(members(fields[key].type), definitions) if key is not None else {}
        allowed = [part for part in parts.get("anyOf", [parts]) if _allows_type(part, name)]
        schemas.extend(
            {**part, "type": name} if "$ref" not in part and "enum" not in part else part for part in allowed
        )
    return schemas


def _allows_type(schema: Schema, name: str) -> bool:
    """Whether a value of the JSON type `name` may match `schema`."""
    if "enum" in schema:
        return name == "string"
    return name in _as_list(schema.get("type", name))


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
