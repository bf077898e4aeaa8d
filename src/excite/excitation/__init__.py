"""Is it persistently excited: the definition (`gramian`), the theorem (`certificate`), Assumption 2 (`acuteness`)."""

from excite.excitation.acuteness import Acuteness, acuteness, choose_batch_size
from excite.excitation.along_path import PathCertificate, StepSizes, certify_path, step_size_decay
from excite.excitation.certificate import Certificate, Span, certificate
from excite.excitation.gramian import Gramian, gramian, simulate

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
