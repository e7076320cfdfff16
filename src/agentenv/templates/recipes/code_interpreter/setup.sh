#!/bin/sh
# Puts a Python that has ipykernel at /opt/code-interpreter/python: the image's own where it has it, else one in a virtual environment.
# The arguments are packages that code is to find besides.
set -eu
here=/opt/code-interpreter
if [ $# -eq 0 ] && python3 -c 'import ipykernel, jupyter_client' 2>/dev/null; then
    printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v python3)" >$here/python
else
    if command -v apt-get >/dev/null && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv python3-pip
    fi
    python3 -m venv --system-site-packages $here/venv
    $here/venv/bin/python -m pip install --quiet ipykernel jupyter_client "$@"
    printf '#!/bin/sh\nexec %s/venv/bin/python "$@"\n' $here >$here/python
fi
chmod 755 $here/python
$here/python -c 'import ipykernel, jupyter_client'
