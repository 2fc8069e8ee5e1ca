"""Drop-in replacements for other implementations of generalized attention. docs/compat.md lists every difference.

========================================  ==============================================================================
module                                    replaces
========================================  ==============================================================================
`gdpa.compat.meta`                        Meta's GDPA in Triton (ads_model_kernel_library)
`gdpa.compat.hstu`                        FBGEMM's HSTU (`hstu`, `fbgemm_gpu.experimental.hstu`)
`gdpa.compat.hstu_attn`                   the older HSTU wheel for Ampere, with its order of arguments
`gdpa.compat.hstu_attn_interface`         the older HSTU wheel for Hopper, with its order of arguments
`gdpa.compat.generative_recommenders`     the attention of Meta's generative-recommenders
========================================  ==============================================================================

Code that imports such a package needs another import, or one call of :func:`install` before the import::

    from gdpa.compat.hstu import hstu_attn_varlen_func

    gdpa.compat.install("hstu")  # registers the names of the package
    from hstu import hstu_attn_varlen_func
"""

from gdpa.compat._install import install

__all__ = ["install"]
