# Functions for docs/lab.md: the CLI as three users, and short requests to the portal.
# Source it in bash from the root of the checkout:  . examples/lab/lab.sh

export TESSERA_URL=${TESSERA_URL:-http://127.0.0.1:8000}

admin() { TESSERA_TOKEN=$ADMIN ./tessera "$@"; }
alice() { TESSERA_TOKEN=$ALICE ./tessera "$@"; }
bob() { TESSERA_TOKEN=$BOB ./tessera "$@"; }

# sign_in USER SCOPE ...: prints a token; takes the password from USER_PASSWORD, or asks for it.
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

# api PATH [CURL OPTIONS]: sends a request as admin, or with the token in WHO. The token is not an
# argument of curl, because every user of the machine can read arguments.
api() {
    local path=$1
    shift
    curl -sS -H @<(printf 'Authorization: Token %s\n' "${WHO:-$ADMIN}") "$@" "$TESSERA_URL/api/v1/$path"
    echo
}

# send FILE PATH: posts a YAML document.
send() { api "$2" -H 'Content-Type: application/yaml' --data-binary "@$1"; }

# many COUNT FILE: submits a document COUNT times, all or none.
many() {
    for _ in $(seq "$1"); do
        echo -
        sed 's/^/  /' "$2"
    done | send - jobs/bulk/
}

# numbers QUERY: prints the IDs of the jobs that match a query, newest first.
numbers() { api "jobs/?fields=id&limit=200&$1" | grep -o '"id":[0-9]*' | cut -d: -f2; }

# number NAME: prints the ID of the newest job whose name contains NAME.
number() { numbers "q=$1" | head -n 1; }

# guaranteed NAME: prints the IDs of running guaranteed jobs whose name contains NAME.
guaranteed() {
    local job
    for job in $(numbers "q=$1&state=running"); do
        if api "jobs/$job/attempts/" | grep -q '"opportunistic":false'; then echo "$job"; fi
    done
}

# stop_all: stops all queued and running jobs.
stop_all() {
    local live
    live=$(numbers state=live)
    [ -z "$live" ] || admin stop $live
}
