import sys

from omni_jobs.demo import main

sys.exit(main())
