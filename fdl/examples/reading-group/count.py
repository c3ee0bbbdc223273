"""Counts the words of a text; runs after read.py in the same sandbox."""

import json
from collections import Counter

from lambda_functions.work import Work


def words(work: Work) -> None:
    """`sign.txt` becomes `sign.json`: each word with how often it is there."""
    counted = Counter(work.input.read_text("utf-8").lower().split())
    target = work.output_folder / f"{work.input.stem}.json"
    target.write_text(json.dumps(dict(counted.most_common()), indent=1, ensure_ascii=False))
    print(f"{work.input.name}: {counted.total()} words")
