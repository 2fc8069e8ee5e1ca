"""Published figures of the next item among all items, with their sources, for the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A published result of one model."""

    model: str
    data_set: str
    ndcg: float
    hit_rate: float
    source: str  # a page with the number


_RECBOLE = (
    "[pswrec2k26](https://github.com/kanishkaRandunu/pswrec2k26/blob/0f53911addb44c768acf9675d8915264dd9f2e92/"
    "results/ml100k_results.md), with RecBole"
)
_HSTU = (
    "[arXiv 2402.17152](https://arxiv.org/abs/2402.17152) and "
    "[its code](https://github.com/facebookresearch/generative-recommenders)"
)

SAME_DATA = "MovieLens 100K"
REFERENCES = (
    Reference("SASRec", SAME_DATA, 0.0594, 0.1198, _RECBOLE),
    Reference("GRU4Rec", SAME_DATA, 0.0650, 0.1304, _RECBOLE),
    Reference("FEARec", SAME_DATA, 0.0622, 0.1304, _RECBOLE),
    Reference("SASRec", "MovieLens 1M", 0.1603, 0.2853, _HSTU),
    Reference("HSTU", "MovieLens 1M", 0.1720, 0.3097, _HSTU),
    Reference("HSTU-large", "MovieLens 1M", 0.1893, 0.3294, _HSTU),
)
