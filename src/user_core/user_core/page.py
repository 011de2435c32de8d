# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a page of YAML into a model and says what is wrong with it: file, path, nearest key."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
import difflib
import json
import os
from pathlib import Path
import types
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
import yaml

from user_core.errors import UserError

Model = TypeVar('Model', bound=BaseModel)
Content = dict[str, Any]


def folders() -> list[Path]:
    """Where shipped pages lie: ./config, then user_bringup's share."""
    prefixes = os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
    shares = [Path(prefix) / 'share/user_bringup/config' for prefix in prefixes if prefix]
    return [Path('config'), *shares]


def find(source: str | Path) -> Path:
    """The file of a page given as a path, a run folder or the name of a shipped page.

    Raises:
        UserError: there is none.
    """
    path = Path(source)
    if path.is_file():
        return path
    if (path / 'config.json').is_file():
        return path / 'config.json'
    for folder in folders():
        if (named := folder / f'{source}.yaml').is_file():
            return named
    known = sorted({file.stem for folder in folders() for file in folder.glob('*.yaml')})
    near = difflib.get_close_matches(path.stem, known, 1)
    raise UserError(
        f'There is no configuration {source}',
        f'the shipped ones are {", ".join(known)}' if known else 'none is shipped here',
        f'Did you mean {near[0]}?' if near else 'Give one of them, or the path of a YAML file',
    )


def read(path: Path) -> Content:
    """The mapping in a YAML or JSON file.

    Raises:
        UserError: it cannot be read, is no mapping, or gives a key twice.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{path} cannot be read', str(error)) from error
    if path.suffix == '.json':
        return from_json(text, str(path))
    try:
        content = yaml.load(text, _UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f', line {mark.line + 1}, column {mark.column + 1}' if mark else ''
        raise UserError(f'{path}{where}: {error.problem or error.context}') from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise UserError(f'{path} is no YAML', ' '.join(str(error).split())) from error
    return _mapping(content, str(path))


def from_json(text: str, origin: str) -> Content:
    """The mapping in a JSON text."""
    try:
        return _mapping(json.loads(text), origin)
    except json.JSONDecodeError as error:
        raise UserError(f'{origin}, line {error.lineno}: {error.msg}') from error


def merge(content: Content, overrides: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Puts the fragment of each `with=FILE` over the content, in order: mappings part by part,
    anything else whole.

    Returns:
        (the other overrides, the file that gave each dotted key).

    Raises:
        UserError: there is no such fragment, or it cannot be read.
    """
    others, given = list[str](), dict[str, str]()
    for text in overrides:
        key, _, name = text.partition('=')
        if key != 'with':
            others.append(text)
        elif name and not Path(name).is_file():
            raise UserError(
                f'There is no fragment {name}', '', '`user teach peg` writes one; give its path'
            )
        elif name:
            given |= dict.fromkeys(_lay(content, read(Path(name)), ''), name)
    return others, given


def _lay(content: Content, fragment: Content, path: str) -> Iterator[str]:
    for key, value in fragment.items():
        if isinstance(value, dict):
            if not isinstance(content.get(key), dict):
                content[key] = {}
            yield from _lay(content[key], value, f'{path}{key}.')
        else:
            content[key] = value
            yield f'{path}{key}'


def override(model: type[BaseModel], content: Content, overrides: Sequence[str]) -> None:
    """Applies `a.b=value`, in order; a value is YAML. `arm=KIND` changes the kind of every
    arm, `cameras=KIND` that of every camera; what both kinds have stays as the page says.

    Raises:
        UserError: an override has no `=`, or goes through something that is no mapping.
    """
    for text in overrides:
        key, equals, value = text.partition('=')
        if not equals or not key:
            raise UserError(f'{text} is no setting', '', 'Write it as key=value, e.g. seed=1')
        try:
            parsed = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
            raise UserError(f'The value of {text} is no YAML') from error
        if key == 'arm':
            for name, cell in _mapping(content.setdefault('cells', {'arm0': {}}), 'cells').items():
                arm = _mapping(_mapping(cell, f'cells.{name}').setdefault('arm', {}), 'arm')
                cell['arm'] = _of_other_kind(model, ('cells', name, 'arm'), arm, parsed)
            continue
        if key == 'cameras':
            for name, cell in _mapping(content.get('cells') or {}, 'cells').items():
                cameras = _mapping(_mapping(cell, f'cells.{name}').get('cameras') or {}, 'cameras')
                for camera, part in cameras.items():
                    at = ('cells', name, 'cameras', camera)
                    cameras[camera] = _of_other_kind(model, at, _mapping(part, camera), parsed)
            continue
        *parents, last = key.split('.')
        place: Any = content
        for depth, parent in enumerate(parents):
            if place.get(parent) is None:
                place[parent] = {}
            place = place[parent]
            if not isinstance(place, dict):
                path = '.'.join(parents[: depth + 1])
                raise UserError(f'{text} cannot be set', f'{path} is a value, it has no parts')
        place[last] = parsed


def _of_other_kind(
    model: type[BaseModel], path: Sequence[str], part: Content, kind: Any
) -> Content:
    """The part with another kind; it keeps all but what only its own kind has."""
    kinds = {_kind(m): m.model_fields for m in reversed(_at(model, path)) if _kind(m)}
    was = part.get('kind', next(reversed(kinds)))
    known = isinstance(kind, str) and kind in kinds
    gone = set(kinds.get(was, ())) - set(kinds[kind]) if known else set()
    return {k: v for k, v in part.items() if k not in gone} | {'kind': kind}


def validate(
    model: type[Model],
    content: Content,
    origin: str,
    overrides: Sequence[str] = (),
    fragments: Mapping[str, str] = types.MappingProxyType({}),
) -> Model:
    """The content as a model; `fragments` names the file that gave a key if not `origin`.

    Raises:
        UserError: one sentence for each of the first mistakes.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        typed = {text.partition('=')[0]: f'command line ({text})' for text in overrides}
        set_here = {**fragments, **typed}
        mistakes = [_sentence(model, e, origin, set_here) for e in error.errors()[:5]]
        more = error.error_count() - len(mistakes)
        rest = f'and {more} more' if more > 0 else ''
        raise UserError(mistakes[0], ' '.join(mistakes[1:]), rest) from None


def keys(model: type[BaseModel], path: str = '') -> Iterator[str]:
    """Every key of the model and its parts, dotted; `*` stands for a chosen name."""
    for name, field in model.model_fields.items():
        yield f'{path}{name}'
        for part, inner in _models(field.annotation):
            yield from keys(inner, f'{path}{name}.{part}')


def _sentence(
    model: type[BaseModel], error: ErrorDetails, origin: str, set_here: Mapping[str, str]
) -> str:
    path = _without_kinds(model, [str(part) for part in error['loc']])
    dotted = '.'.join(path)
    at = f'{dotted}.'
    given = [w for k, w in set_here.items() if f'{k}.'.startswith(at) or at.startswith(f'{k}.')]
    where = given[-1] if dotted and given else origin
    if path and path[-1] == '[key]':
        return f'{where}: {dotted[:-6]}: a name has lower-case letters, digits and _ only.'
    match error['type']:
        case 'extra_forbidden':
            kinds = [str(part) for part in error['loc'] if str(part) not in path]
            if kinds and (others := _kinds_with(model, path, kinds[-1])):
                return f'{where}: {dotted} belongs to kind {others}, here the kind is {kinds[-1]}.'
            near = nearest(model, path)
            hint = (
                f', did you mean {near}?' if near else f', known here: {_siblings(model, path)}.'
            )
            return f'{where}: unknown key {dotted}{hint}'
        case 'missing':
            return f'{where}: {dotted} is missing.'
        case 'literal_error' | 'union_tag_invalid':
            context = error.get('ctx', {})
            good = str(context.get('expected', context.get('expected_tags', ''))).replace("'", '')
            value = error['input']
            if isinstance(value, dict):
                value = value.get('kind')
            close = difflib.get_close_matches(
                str(value), good.replace(' or ', ', ').split(', '), 1
            )
            hint = f', did you mean {close[0]}?' if close else '.'
            return f'{where}: {dotted} is {value}, but can be {good}{hint}'
        case 'value_error':
            message = str(error['ctx']['error'])
            return f'{where}: {dotted}{": " if dotted else ""}{message}.'
        case _:
            message = error['msg'][0].lower() + error['msg'][1:]
            return f'{where}: {dotted} is {_short(error["input"])}, but {_must(message)}.'


def nearest(model: type[BaseModel], path: Sequence[str]) -> str | None:
    """The known key that an unknown one most likely means: a sibling, else any of that name."""
    *parents, last = path
    siblings = _children(model, parents)
    if close := difflib.get_close_matches(last, siblings, 1, 0.6):
        return '.'.join([*parents, close[0]])
    everywhere = list(keys(model))
    by_name = {key.rsplit('.', 1)[-1]: key for key in reversed(everywhere)}
    if close := difflib.get_close_matches(last, by_name, 1, 0.8):
        return by_name[close[0]]
    return None


def _without_kinds(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The path as it stands on the page: without the kinds by which models were chosen."""
    found, plain, names = [model], list[str](), False
    for part in path:
        if not names and not any(part in m.model_fields for m in found):
            chosen = [m for m in found if part == _kind(m)]
            if chosen:
                found = chosen
                continue
        plain.append(part)
        if names:
            names = False
            continue
        inner = [p for m in found if part in m.model_fields for p in _fields(m, part)]
        found = [m for _, m in inner]
        names = any(prefix for prefix, _ in inner)
    return plain


def _kinds_with(model: type[BaseModel], path: Sequence[str], kind: str) -> str:
    """The other kinds that know the last key of the path."""
    models = _at(model, path[:-1])
    return ' and '.join(_kind(m) for m in models if path[-1] in m.model_fields and _kind(m))


def _kind(model: type[BaseModel]) -> str:
    field = model.model_fields.get('kind')
    return str(field.default) if field else ''


def _fields(model: type[BaseModel], key: str) -> list[tuple[str, type[BaseModel]]]:
    return list(_models(model.model_fields[key].annotation))


def _siblings(model: type[BaseModel], path: Sequence[str]) -> str:
    return ', '.join(_children(model, path[:-1]))


def _children(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Keys below a path of real keys."""
    return list(dict.fromkeys(name for m in _at(model, path) for name in m.model_fields))


def _at(model: type[BaseModel], path: Sequence[str]) -> list[type[BaseModel]]:
    """Models that can stand at a path of real keys."""
    found, skip = [model], False
    for key in path:
        if skip:
            skip = False
            continue
        inner = [p for m in found if key in m.model_fields for p in _fields(m, key)]
        found = [m for _, m in inner] or found
        skip = any(prefix for prefix, _ in inner)
    return found


def _models(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Models inside an annotation, with '*.' where a chosen name stands before their keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield '', annotation
    elif get_origin(annotation) is Annotated:
        yield from _models(get_args(annotation)[0])
    elif get_origin(annotation) is dict:
        for _, inner in _models(get_args(annotation)[1]):
            yield '*.', inner
    elif get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _models(argument)


def _mapping(content: Any, origin: str) -> Content:
    if not isinstance(content, dict):
        raise UserError(
            f'{origin} holds no configuration', 'it is not a mapping of keys to values'
        )
    return content


def _must(message: str) -> str:
    return message.replace('input should be', 'must be').replace('input', 'it')


def _short(value: Any) -> str:
    text = 'empty' if value is None else str(value)
    return text if len(text) <= 60 else f'{text[:57]}...'


class _UniqueKeys(yaml.SafeLoader):
    """YAML as it should be read: a key given twice is an error, not a silent replacement."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, f'{key} cannot be a key', key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f'key {key} is given twice', key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
