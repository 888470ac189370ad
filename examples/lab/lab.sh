# What docs/lab.md uses: three people on the command line, and short questions to the portal.
# Read it into bash from the top of the checkout:  . examples/lab/lab.sh

export TESSERA_URL=${TESSERA_URL:-http://127.0.0.1:8000}

admin() { TESSERA_TOKEN=$ADMIN ./tessera "$@"; }
alice() { TESSERA_TOKEN=$ALICE ./tessera "$@"; }
bob() { TESSERA_TOKEN=$BOB ./tessera "$@"; }

# sign_in USER SCOPE ...: prints a token; the password is asked for, or taken from USER_PASSWORD.
sign_in() {
    local user=$1 password=${1^^}_PASSWORD scopes=()
    shift
    for scope in "$@"; do scopes+=(--scope "$scope"); done
    if [ -n "${!password-}" ]; then
        ./tessera token create lab --user "$user" "${scopes[@]}" --password-stdin <<<"${!password}"
    else
        ./tessera token create lab --user "$user" "${scopes[@]}"
    fi
}

# api PATH [CURL OPTIONS]: asks the portal as admin, or with another token in WHO. No token stands
# on a command line, where everybody on the machine could read it.
api() {
    local path=$1
    shift
    curl -sS -H @<(printf 'Authorization: Token %s\n' "${WHO:-$ADMIN}") "$@" "$TESSERA_URL/api/v1/$path"
    echo
}

# send FILE PATH: posts a YAML document.
send() { api "$2" -H 'Content-Type: application/yaml' --data-binary "@$1"; }

# many COUNT FILE: submits a document so often, all or none.
many() {
    for _ in $(seq "$1"); do
        echo -
        sed 's/^/  /' "$2"
    done | send - jobs/bulk/
}

# numbers QUERY: the numbers of the jobs that a query finds, the newest first.
numbers() { api "jobs/?fields=id&limit=200&$1" | grep -o '"id":[0-9]*' | cut -d: -f2; }

# number NAME: the number of the newest job whose name holds NAME.
number() { numbers "q=$1" | head -n 1; }

# guaranteed NAME: the number of the running job of this name that does not borrow its devices.
guaranteed() {
    local job
    for job in $(numbers "q=$1&state=running"); do
        if api "jobs/$job/attempts/" | grep -q '"opportunistic":false'; then echo "$job"; fi
    done
}

# stop_all: ends every job that waits or runs.
stop_all() {
    local live
    live=$(numbers state=live)
    [ -z "$live" ] || admin stop $live
}
