"""`python -m tunan` is `tunan`."""

import sys

from tunan.cli.main import main

sys.exit(main())
