"""Is it persistently excited: the definition (`gramian`), the theorem (`certificate`), the assumption (`acuteness`)."""

from excite.excitation.along_path import PathCertificate, StepSizes, certify_path, step_size_decay
from excite.excitation.assumption import Acuteness, acuteness, choose_batch_size
from excite.excitation.definition import Gramian, gramian, simulate
from excite.excitation.theorem import Certificate, Span, certificate

__all__ = [
    "Acuteness",
    "Certificate",
    "Gramian",
    "PathCertificate",
    "Span",
    "StepSizes",
    "acuteness",
    "certificate",
    "certify_path",
    "choose_batch_size",
    "gramian",
    "simulate",
    "step_size_decay",
]
