"""`python -m grpcxx doctor`."""

import sys

from .doctor import main

sys.exit(main())
