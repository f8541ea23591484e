"""Handwritten digits to train on: real images that need no download, or MNIST's own files."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from ...core.environment import need

TRAINING_IMAGES = 1500
"""The number of images to train on. The other 297 of scikit-learn's 1,797 images are held out."""
SIZE = 28
"""Pixels along each side, as in MNIST."""
IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
IDX_UNSIGNED_BYTE = 0x08
GZIP_BEGINS = b"\x1f\x8b"


def load(seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
    """Scikit-learn's bundled digits, enlarged to MNIST's 28 x 28 pixels.

    The data are 1,797 images of 8 x 8 pixels, scanned handwriting of 13 people (Alpaydin and Kaynak
    1998, UCI Machine Learning Repository, "Optical Recognition of Handwritten Digits", test part).
    `load` divides the images into two parts at random. So both parts contain digits of the same
    writers, and the accuracy on the held-out part says nothing about other writers.

    Parameters
    ----------
    seed : int
        The seed that determines which images are held out.

    Returns
    -------
    train, test : torch.utils.data.TensorDataset
        Data sets of 1,500 and 297 examples. Images are float32 tensors of shape (1, 28, 28), with
        values from 0 to 1. Labels are int64, from 0 to 9. ``.tensors`` of a data set is a pair: all
        its images, and all its labels.

    Raises
    ------
    ImportError
        scikit-learn is not installed (``pip install "rank-by-rank[course]"``).
    """
    need("course", "sklearn", what="simlib.digits.load()")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = torch.from_numpy(bunch.images).to(torch.float32).unsqueeze(1) / 16
    images = torch.nn.functional.interpolate(small, size=(SIZE, SIZE), mode="bilinear")
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    training, held_out = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    return (
        TensorDataset(images[training], labels[training]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def load_mnist(folder: str | Path) -> tuple[TensorDataset, TensorDataset]:
    """Read MNIST from its four published IDX files, unpacked or with ``.gz``.

    Parameters
    ----------
    folder : str or path
        The folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the two
        ``t10k`` files.

    Returns
    -------
    train, test : torch.utils.data.TensorDataset
        Data sets as from `load`, with 60,000 and 10,000 examples.

    Raises
    ------
    FileNotFoundError
        One of the four files is missing.
    ValueError
        A file does not have the content that its name says, or images and labels do not match.
    """
    folder = Path(folder).expanduser()
    train, test = (_dataset(folder / names[0], folder / names[1]) for names in IDX_FILES.values())
    sizes = [tuple(part.tensors[0].shape[1:]) for part in (train, test)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{folder} has images of shape {sizes[0]} for training, but {sizes[1]} for tests"
        )
    return train, test


def read_idx(path: Path) -> np.ndarray:
    """The array in one IDX file of bytes, the format in which MNIST is published.

    The file begins with two zero bytes, one byte for the type (8 is an unsigned byte), and one byte
    for the number of dimensions. The size of each dimension follows as four bytes, the highest byte
    first. The values are at the end (LeCun, Cortes and Burges, "The MNIST database of handwritten
    digits", "The IDX file format").

    Parameters
    ----------
    path : str or path
        The file. If its name ends in ``.gz``, it is unpacked while it is read.

    Returns
    -------
    numpy.ndarray of uint8

    Raises
    ------
    ValueError
        The file is not an IDX file of bytes, or is shorter or longer than its header says.
    """
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            data = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be decompressed ({error}): was it downloaded completely?"
        ) from None
    if data[:2] == GZIP_BEGINS:
        raise ValueError(
            f"{path} is compressed, so it is not an IDX file of bytes: name it {path.name}.gz"
        )
    if len(data) < 4 or data[:3] != bytes([0, 0, IDX_UNSIGNED_BYTE]):
        raise ValueError(f"{path} is not an IDX file of bytes: it should begin with 0, 0, 8")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"{path} ends within its header: the file is damaged or incomplete")
    shape = tuple(np.frombuffer(data[4:start], dtype=">u4").tolist())
    if math.prod(shape) != len(data) - start:
        raise ValueError(
            f"{path} contains {len(data) - start:,} bytes of values, but the header says "
            f"{' x '.join(map(str, shape))}: the file is damaged, incomplete or too long"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy()


def _dataset(images_path: Path, labels_path: Path) -> TensorDataset:
    """Images and labels of two IDX files, in the form of `load`."""
    images, labels = read_idx(_found(images_path)), read_idx(_found(labels_path))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not len(labels):
        raise ValueError(
            f"{images_path.name} has the shape {images.shape}, and {labels_path.name} has "
            f"{labels.shape}: expected are (n, rows, columns) and (n,) with n > 0"
        )
    if labels.max() > 9:
        raise ValueError(f"{labels_path.name} has the label {labels.max()}: labels are 0 to 9")
    scaled = torch.from_numpy(images).to(torch.float32).unsqueeze(1) / 255
    return TensorDataset(scaled, torch.from_numpy(labels).to(torch.int64))


def _found(path: Path) -> Path:
    """The file of this name, or the packed file next to it."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.exists():
            return candidate
    names = ", ".join(name for pair in IDX_FILES.values() for name in pair)
    raise FileNotFoundError(f"there is no {path}, and no {path.name}.gz: MNIST needs {names}")
