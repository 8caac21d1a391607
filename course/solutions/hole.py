"""HolE (Nickel, Rosasco, Poggio, AAAI 2016): head and tail are bound together by circular correlation.

Train it with

    python cli.py train --model course/solutions/hole.py:HolE --data families
"""

import numpy as np

import cardkge


def convolution(a, b):
    """Circular: c_j = sum_i a_i b_{j - i}, of rows (..., k); by the fast Fourier transform."""
    k = a.shape[-1]
    return np.fft.irfft(np.fft.rfft(a) * np.fft.rfft(b), k)


def correlation(a, b):
    """Circular: c_j = sum_i a_i b_{j + i}, of rows (..., k)."""
    k = a.shape[-1]
    return np.fft.irfft(np.conj(np.fft.rfft(a)) * np.fft.rfft(b), k)


class HolE(cardkge.Bilinear):
    """phi = r . correlation(h, t) = sum_ij r_j h_i t_{j + i}, indices modulo k.

    params: entity (N, k), relation (R, k).
    """

    name = "hole"

    def phi(self, h, r, t):
        return (self.query_tails(h, r) * t).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        u = upstream[..., None]
        d_r = correlation(h, t).astype(self.dtype, copy=False)
        return u * self.query_heads(r, t), u * d_r, u * self.query_tails(h, r)

    # phi = convolution(h, r) . t = correlation(r, t) . h. Linear in each, and convolution(h, r) = convolution(r, h), so
    # that `match` and `d_pairs` of Bilinear will do.

    def query_tails(self, h, r):
        return convolution(h, r).astype(self.dtype, copy=False)

    def query_heads(self, r, t):
        return correlation(r, t).astype(self.dtype, copy=False)
