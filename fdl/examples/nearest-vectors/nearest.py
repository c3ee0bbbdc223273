#!/usr/bin/env python3
"""For every vector in a CSV file (name, number, number, …) the one most like it.

Likeness is the cosine. The products of all pairs are one matrix product on the leased device; the
vectors are sent once and stay there for it.
"""

import csv
import math
import os
import sys
from array import array
from pathlib import Path

import remote_gpu.client as gpu


def read_vectors(path):
    """Names, and vectors of length 1."""
    names, vectors = [], []
    with path.open(newline="") as file:
        for line, (name, *fields) in enumerate((row for row in csv.reader(file) if row), 1):
            try:
                vector = [float(field) for field in fields]
            except ValueError as error:
                sys.exit(f"{path.name}:{line}: {error}")
            length = math.hypot(*vector)
            width = len(vectors[0] if vectors else vector)
            if not 0.0 < length < math.inf or len(vector) != width:
                sys.exit(f"{path.name}:{line}: not a vector as the others are: {fields}")
            names.append(name)
            vectors.append([number / length for number in vector])
    if len(names) < 2:
        sys.exit(f"{path.name}: two vectors at least are needed, here are {len(names)}")
    return names, vectors


def likeness(device, vectors):
    """The matrix of all cosines, row by row."""
    count, width = len(vectors), len(vectors[0])
    rows = array("f", (number for vector in vectors for number in vector))
    columns = array("f", (vector[i] for i in range(width) for vector in vectors))
    found = device.op("sgemm", rows, columns, m=count, n=count, k=width)
    return array("f", bytes(found.buffers[0])), found.implementation


def main():
    source = Path(os.environ["INPUT_FILE_PATH"])
    names, vectors = read_vectors(source)
    try:
        with gpu.connect() as device:
            cosines, implementation = likeness(device, vectors)
    except gpu.RemoteError as error:
        sys.exit(f"nearest vectors: {error}")
    count = len(names)
    target = Path(os.environ["TMP_OUTPUT_DIR"], f"{source.stem}.nearest.csv")
    with target.open("w", newline="") as file:
        rows = csv.writer(file)
        for i, name in enumerate(names):
            others = [j for j in range(count) if j != i]
            nearest = max(others, key=lambda j, i=i: cosines[i * count + j])
            rows.writerow([name, names[nearest], f"{cosines[i * count + nearest]:.4f}"])
    print(f"{count} vectors of {len(vectors[0])} numbers, by {implementation}")


if __name__ == "__main__":
    main()
