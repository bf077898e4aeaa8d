"""Is training persistently excited? Definition (`gramian`), theorem (`certificate`) and assumption (`acuteness`)."""

from excite.excitation.along_path import (
    CertifiedDescent,
    Excitation,
    PathCertificate,
    Smoothness,
    StepSizes,
    certify,
    certify_descent,
    step_size_decay,
)
from excite.excitation.assumption import Acuteness, acuteness, choose_batch_size
from excite.excitation.definition import Gramian, gramian, simulate
from excite.excitation.theorem import Certificate, Span, certificate

__all__ = [
    "Acuteness",
    "Certificate",
    "CertifiedDescent",
    "Excitation",
    "Gramian",
    "PathCertificate",
    "Smoothness",
    "Span",
    "StepSizes",
    "acuteness",
    "certificate",
    "certify",
    "certify_descent",
    "choose_batch_size",
    "gramian",
    "simulate",
    "step_size_decay",
]
