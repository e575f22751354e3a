"""Files of arrays, divided among ranks: `for batch in grpcxx.data.shards("train-*.parquet")`; see docs/parallel.md."""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import _safetensors, parallel
from ._prefetch import prefetch

__all__ = ["images", "prefetch", "shards"]

Batch = dict[str, np.ndarray]


def shards(
    path: str | os.PathLike[str],
    rank: int | None = None,
    size: int | None = None,
    *,
    batch_rows: int = 1024,
    columns: Sequence[str] | None = None,
) -> Iterator[Batch]:
    """Batches of this rank from a file, or from all that a pattern names, in the order of their names.

    A batch maps names to arrays with `batch_rows` rows. All files together are one table; of its batches rank `r` of
    `n` takes those numbered `r`, `n + r`, `2 n + r` and so on, and what is left at the end is divided once more. So all
    ranks get as many batches, with as many rows, and at most `n - 1` rows are left out; fewer rows than ranks are an
    error on each. `rank` and `size` are by default those of `grpcxx.parallel`.

    The end of the name tells the kind of a file: .csv, .parquet, .arrow and .feather (by pyarrow), .npy (whose only
    column is `array`), .safetensors, .h5 and .hdf5 (by h5py), .nc (by h5netcdf). No more is read at
    once than a batch, a row group of Parquet, or a batch of all ranks of CSV. Columns are all that the files have,
    or those that are named; one that a file does not have, or has with another type, is an error.
    """
    rank, size = _place(rank, size, batch_rows)
    files = _files(os.fspath(path))
    if not files:
        raise FileNotFoundError(f"no file is named {os.fspath(path)}")
    kinds = {_kind(file) for file in files}
    if kinds == {_Csv}:
        return _streamed(files, rank, size, batch_rows, columns)
    if _Csv in kinds:
        raise ValueError(f"{os.fspath(path)} names CSV and other files; take them one kind after the other")
    return _indexed(files, rank, size, batch_rows, columns)


def images(
    folder: str | os.PathLike[str],
    rank: int | None = None,
    size: int | None = None,
    *,
    batch_rows: int = 32,
    shape: tuple[int, int] | None = None,
    mode: str = "RGB",
    seed: int | None = None,
) -> Iterator[Batch]:
    """Batches of this rank from a folder of images, or of folders of images, one for each label.

    A batch has `image`, bytes of the shape rows, height, width, channels, and where there are folders `label`, their
    numbers in the order of their names. Pillow reads the files and converts them to its `mode`: `RGB`, `L`, `RGBA`.
    Values of 16 and 32 bits need one that holds them: `I;16`, `I` or `F`.
    With `shape`, height and width, all are resized; without, all must be as large. The ranks divide the images as those
    of `shards` divide rows: in the order of their names, or in one that `seed` draws, which all ranks give alike;
    another one for each epoch.
    """
    rank, size = _place(rank, size, batch_rows)
    pillow = _library("PIL.Image", os.fspath(folder), package="pillow")
    # Hidden folders are those of other programs.
    labels = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    found = [
        (path, label)
        for label, name in enumerate(labels or ["."])
        for path in sorted(glob.glob(os.path.join(glob.escape(os.path.join(folder, name)), "*")))
        if os.path.splitext(path)[1].lower() in _IMAGES
    ]
    if not found:
        raise FileNotFoundError(f"{os.fspath(folder)} holds no images; their names end with {', '.join(_IMAGES)}")
    if seed is not None:
        found = [found[at] for at in np.random.default_rng(seed).permutation(len(found))]
    return _images(pillow, found, _ranges(len(found), rank, size, batch_rows), (shape, mode), bool(labels))


def _images(
    pillow: Any,
    found: list[tuple[str, int]],
    ranges: Iterator[tuple[int, int]],
    form: tuple[tuple[int, int] | None, str],
    has_labels: bool,
) -> Iterator[Batch]:
    for start, stop in ranges:
        arrays = []
        for path, _ in found[start:stop]:
            arrays.append(_image(pillow, path, *form))
            if arrays[-1].shape != arrays[0].shape:
                raise ValueError(
                    f"{path} has height and width {arrays[-1].shape[:2]}, and {found[start][0]} has"
                    f" {arrays[0].shape[:2]}; give shape= to resize all"
                )
        batch = {"image": np.stack(arrays)}
        if has_labels:
            batch["label"] = np.array([label for _, label in found[start:stop]])
        yield batch


def _image(pillow: Any, path: str, shape: tuple[int, int] | None, mode: str) -> np.ndarray:
    try:
        with pillow.open(path) as image:
            # Pillow would cut off what does not fit.
            if _depth(image.mode) > _depth(mode):
                raise ValueError(f"its values have more bits than {mode!r} holds; say mode={image.mode!r} to keep them")
            converted = image.convert(mode)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    if shape is not None:
        converted = converted.resize((shape[1], shape[0]), pillow.Resampling.BILINEAR)
    array = np.asarray(converted)
    return array if array.ndim == 3 else array[:, :, np.newaxis]


def _depth(mode: str) -> int:
    """The place of a mode of Pillow among those of 8, 16 and 32 bits, and floating point."""
    return next((depth for depth, name in ((1, "I;16"), (2, "I"), (3, "F")) if mode.startswith(name)), 0)


def _place(rank: int | None, size: int | None, batch_rows: int) -> tuple[int, int]:
    rank = parallel.rank() if rank is None else rank
    size = parallel.size() if size is None else size
    if not 0 <= rank < size:
        raise ValueError(f"rank is {rank} of {size}; ranks begin with 0")
    if batch_rows < 1:
        raise ValueError(f"batch_rows is {batch_rows}; give 1 or more")
    return rank, size


def _files(path: str) -> list[str]:
    """What a name or a pattern stands for. Brackets are a part of the name where there is such a file."""
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    return sorted(glob.glob(path))


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors of libraries tell which file they are about."""
    try:
        yield
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, FileNotFoundError) or path in str(error):
            raise
        raise ValueError(f"{path} cannot be read: {error}; copy it again, or leave it out") from error


def _indexed(files: list[str], rank: int, size: int, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Batch]:
    """Batches of files that tell how many rows they have; no others are read."""
    ends: list[int] = []
    form = _Form()
    for file in files:
        with _opened(file, columns) as table:
            ends.append((ends[-1] if ends else 0) + table.rows)
            if table.rows:
                form.check(file, table.columns())
    now, opened = None, None
    try:
        for start, stop in _ranges(ends[-1], rank, size, batch_rows):
            parts = []
            at = int(np.searchsorted(ends, start, side="right"))
            while start < stop:
                if now != at:
                    if opened is not None:
                        opened.close()
                    now, opened = at, _opened(files[at], columns)
                first = ends[at] - opened.rows
                end = min(stop, ends[at])
                if end > start:
                    with _named(files[at]):
                        parts.append(opened.read(start - first, end - first))
                start, at = end, at + 1
            yield _joined(parts)
    finally:
        if opened is not None:
            opened.close()


def _opened(path: str, columns: Sequence[str] | None) -> Any:
    with _named(path):
        return _kind(path)(path, columns)


def _ranges(rows: int, rank: int, size: int, batch_rows: int) -> Iterator[tuple[int, int]]:
    """From which row to which the batches of a rank go."""
    _check_rows(rows, size)
    steps = rows // (batch_rows * size)
    for step in range(steps):
        start = (step * size + rank) * batch_rows
        yield start, start + batch_rows
    left = (rows - steps * size * batch_rows) // size
    if left:
        start = steps * size * batch_rows + rank * left
        yield start, start + left


def _check_rows(rows: int, size: int) -> None:
    if 0 < rows < size:
        raise ValueError(f"{rows} rows or images cannot be divided among {size} ranks: some would have none")


def _streamed(
    files: list[str], rank: int, size: int, batch_rows: int, columns: Sequence[str] | None
) -> Iterator[Batch]:
    """Batches of files that must be read from the beginning."""
    kept: list[Batch] = []
    rows, has_given = 0, False
    types = _csv_types(files, columns)
    for file in files:
        for part in _Csv(file, columns, types).parts():
            kept.append(part)
            rows += _rows(part)
            if rows < batch_rows * size:
                continue
            whole = _joined(kept)
            for start in range(0, rows - batch_rows * size + 1, batch_rows * size):
                mine = start + rank * batch_rows
                yield {name: array[mine : mine + batch_rows] for name, array in whole.items()}
            done = rows // (batch_rows * size) * batch_rows * size
            kept, rows = [{name: array[done:] for name, array in whole.items()}], rows - done
            has_given = True
    if not has_given:
        _check_rows(rows, size)
    if rows >= size:
        whole, left = _joined(kept), rows // size
        yield {name: array[rank * left : (rank + 1) * left] for name, array in whole.items()}


def _joined(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _check_columns(path: str, missing: Sequence[str], found: Iterable[str]) -> None:
    if missing:
        raise KeyError(f"{path} has no {missing[0]!r}; it has {', '.join(sorted(found)[:20])}")


class _Form:
    """Holds all files to the columns of the first one: they are one table, of which each rank takes other rows."""

    def __init__(self):
        self._first = ""
        self._found: dict[str, str] = {}

    def check(self, path: str, columns: Mapping[str, Any]) -> None:
        """Refuses a file whose columns have other names, types or dimensions than those of the first."""
        found = {name: _type_of(column) for name, column in columns.items()}
        if not self._first:
            self._first, self._found = path, found
        for name in sorted(self._found.keys() | found.keys()):
            own, other = (form.get(name, "no such column") for form in (found, self._found))
            if own != other:
                raise ValueError(
                    f"{path} has {own} for {name!r}, and {self._first} has {other}, but all files are one table; give"
                    " them the same columns and types, or name other columns by columns="
                )


def _type_of(column: Any) -> str:
    """The type and the dimensions of each row. Texts are of one type, however long they may be."""
    dtype = column.dtype
    told = {"S": "bytes", "U": "str"}.get(dtype.kind) or str(dtype.newbyteorder("="))
    return f"{told} of shape {list(column.shape[1:])}" if len(column.shape) > 1 else told


class _Table:
    """One file. `rows` says how many it has."""

    rows: int

    def columns(self) -> Mapping[str, Any]:
        """What has the type and the shape of each column."""
        raise NotImplementedError

    def __enter__(self):
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        pass


class _Arrays(_Table):
    """A file of arrays, of which parts can be read, with a row for each index of their first dimension."""

    def __init__(self, path: str, columns: Sequence[str] | None):
        self._file: Any = None
        found = self._open(path)
        if columns is not None:
            _check_columns(path, [name for name in columns if name not in found], found)
            found = {name: found[name] for name in columns}
        lengths = {name: shape[0] for name, (_, shape) in found.items() if shape}
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{name} has {length} rows" for name, length in sorted(lengths.items())[:20])
            self.close()
            raise ValueError(f"{path}: {told or 'there are no rows'}; name columns that belong together by columns=")
        self.rows = next(iter(lengths.values()))
        self._found = {name: found[name][0] for name in lengths}

    def columns(self) -> Mapping[str, Any]:
        return self._found

    def read(self, start: int, stop: int) -> Batch:
        return {name: np.array(array[start:stop]) for name, array in self._found.items()}

    def close(self) -> None:
        if hasattr(self._file, "close"):
            self._file.close()

    def _open(self, path: str) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """What can be read, and the shapes, by name."""
        raise NotImplementedError


class _Npy(_Arrays):
    def _open(self, path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return {"array": (array, array.shape)}


class _Safetensors(_Arrays):
    def _open(self, path):
        return {name: (array, array.shape) for name, array in _safetensors.arrays(path).items()}


class _Hdf5(_Arrays):
    def _open(self, path):
        h5py = _library("h5py", path)
        self._file = h5py.File(path, "r")
        found = {}

        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                found[name] = item, item.shape

        self._file.visititems(visit)
        return found


class _NetCdf(_Arrays):
    def _open(self, path):
        self._file = _library("h5netcdf", path).File(path, "r")
        return {name: (variable, variable.shape) for name, variable in self._file.variables.items()}


class _Parts(_Table):
    """A file of parts that pyarrow reads one at a time; the last one is kept."""

    def __init__(self, path: str, columns: Sequence[str] | None):
        self._path, self._columns = path, None if columns is None else list(columns)
        self._ends = np.cumsum(self._open(path))
        self.rows = int(self._ends[-1]) if len(self._ends) else 0
        self._kept: tuple[int, Any] = (-1, None)

    def read(self, start: int, stop: int) -> Batch:
        parts = []
        at = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            if self._kept[0] != at:
                self._kept = at, self._part(at)
            end = min(stop, int(self._ends[at]))
            part = self._kept[1]
            if end > start:
                rows = part.slice(start - (int(self._ends[at]) - part.num_rows), end - start)
                parts.append(_numpy(rows, self._path, start))
            start, at = end, at + 1
        return _joined(parts)

    def columns(self) -> Mapping[str, Any]:
        return _numpy(self._none(), self._path, 0)

    def close(self) -> None:
        self._kept = -1, None
        self._file.close()

    def _open(self, path: str) -> list[int]:
        """How many rows the parts have."""
        raise NotImplementedError

    def _part(self, at: int) -> Any:
        raise NotImplementedError

    def _none(self) -> Any:
        """A part without rows, for which nothing but the schema is read."""
        raise NotImplementedError


class _Parquet(_Parts):
    def _open(self, path):
        self._file = _library("pyarrow.parquet", path).ParquetFile(path)
        metadata = self._file.metadata
        # It would leave out what it does not find. A name may be the beginning of others: of a list, or of a structure.
        paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
        _check_columns(path, [name for name in self._columns or () if not _begins(name, paths)], paths)
        return [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]

    def _part(self, at):
        return self._file.read_row_group(at, columns=self._columns)

    def _none(self):
        return self._file.read_row_groups([], columns=self._columns)


def _begins(name: str, paths: list[str]) -> bool:
    return any(f"{path}.".startswith(f"{name}.") for path in paths)


class _Arrow(_Parts):
    def _open(self, path):
        arrow = _library("pyarrow", path)
        _library("pyarrow.ipc", path)
        self._file = arrow.memory_map(path)
        self._reader = arrow.ipc.open_file(self._file)
        return [self._reader.get_batch(at).num_rows for at in range(self._reader.num_record_batches)]

    def _part(self, at):
        return self._chosen(self._reader.get_batch(at))

    def _none(self):
        return self._chosen(self._reader.schema.empty_table())

    def _chosen(self, part: Any) -> Any:
        return part if self._columns is None else part.select(self._columns)


class _Csv:
    def __init__(self, path: str, columns: Sequence[str] | None, types: Mapping[str, Any]):
        csv = _library("pyarrow.csv", path)
        options = csv.ConvertOptions(include_columns=list(columns or []), column_types=dict(types))
        self._path = path
        with _named(path):
            self._reader = csv.open_csv(path, convert_options=options)

    def fields(self) -> dict[str, Any]:
        """The type of each column, as the beginning of the file tells it."""
        with self._reader:
            return {field.name: field.type for field in self._reader.schema}

    def parts(self) -> Iterator[Batch]:
        with self._reader:
            first_row = 0
            while True:
                with _named(self._path):
                    part = next(self._reader, None)
                if part is None:
                    return
                if part.num_rows:
                    yield _numpy(part, self._path, first_row)
                first_row += part.num_rows


def _csv_types(files: list[str], columns: Sequence[str] | None) -> dict[str, Any]:
    """The type of each column in all files: a file may have whole numbers alone where others have decimals, or none."""
    found = {file: _Csv(file, columns, {}).fields() for file in files}
    types: dict[str, Any] = {}
    for fields in found.values():
        for name, type_ in fields.items():
            types[name] = _wider(types.get(name, type_), type_)
    arrow, form = importlib.import_module("pyarrow"), _Form()
    for file, fields in found.items():
        wide = {name: _wider(type_, types[name]) for name, type_ in fields.items()}
        form.check(file, {name: arrow.nulls(0, type_).to_numpy(zero_copy_only=False) for name, type_ in wide.items()})
    return types


def _wider(first: Any, second: Any) -> Any:
    """A type of columns that holds what both do, or the first."""
    pair = str(first), str(second)
    return second if pair in (("int64", "double"), ("null", pair[1])) else first


def _numpy(part: Any, path: str, first_row: int) -> Batch:
    """Columns of pyarrow as arrays; lists of one length become rows of a matrix.

    The part begins with this row of the file.
    """
    arrow = importlib.import_module("pyarrow")
    batch = {}
    for name, column in zip(part.schema.names, part.columns):
        if name in batch:
            raise ValueError(f"{path} has two columns of the name {name!r}; give one of them another name")
        if isinstance(column, arrow.ChunkedArray):
            column = column.combine_chunks()
            if isinstance(column, arrow.ChunkedArray):
                column = column.chunk(0)
        try:
            batch[name] = _rows_of(arrow, column)
        except _NullRow as null:
            raise ValueError(
                f"{path}: row {first_row + null.row} of column {name!r} has a null where each row has {null.wanted},"
                " and an array has no place for that; leave such rows out of the file, fill them in, or name other"
                " columns by columns="
            ) from None
    return batch


class _NullRow(Exception):
    """A row that has a null where an array has no place for one."""

    def __init__(self, row: int, wanted: str):
        super().__init__(row)
        self.row, self.wanted = row, wanted

    @classmethod
    def first_of(cls, column: Any, wanted: str) -> _NullRow:
        return cls(int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]), wanted)


def _rows_of(arrow: Any, column: Any) -> np.ndarray:
    """A column of pyarrow as an array with a row for each of its own."""
    if not arrow.types.is_fixed_size_list(column.type):
        array = column.to_numpy(zero_copy_only=False)
        # Beside a null, integers would become floating point and lose digits, and other ranks would have another type.
        if column.null_count and array.dtype != column.slice(0, 0).to_numpy(zero_copy_only=False).dtype:
            raise _NullRow.first_of(column, f"a value of {column.type}")
        return array
    length = column.type.list_size
    if column.null_count:
        raise _NullRow.first_of(column, f"a list of {length}")
    try:
        # It begins where a slice does, and leaves lists out that are null.
        values = _rows_of(arrow, column.flatten())
    except _NullRow as null:
        raise _NullRow(null.row // length, null.wanted) from None
    return values.reshape(len(column), length, *values.shape[1:])


def _library(name: str, path: str, package: str | None = None) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = package or name.partition(".")[0]
        raise ImportError(f"{path} is read by {package}, which is not here: pip install {package}") from error


def _kind(path: str) -> Any:
    ending = os.path.splitext(path)[1].lower()
    kind = _KINDS.get(ending)
    if kind is None:
        raise ValueError(f"{path} ends with {ending!r}, and can be read with {', '.join(sorted(_KINDS))}")
    return kind


_IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

_KINDS = {
    ".arrow": _Arrow,
    ".csv": _Csv,
    ".feather": _Arrow,
    ".h5": _Hdf5,
    ".hdf5": _Hdf5,
    ".nc": _NetCdf,
    ".npy": _Npy,
    ".parquet": _Parquet,
    ".safetensors": _Safetensors,
}
