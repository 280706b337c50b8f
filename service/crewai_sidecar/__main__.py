"""`python -m crewai_sidecar`: the command line."""

from crewai_sidecar.cli import main

if __name__ == "__main__":
    main()
