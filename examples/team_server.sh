#!/bin/sh
# A server for a team, as an ordinary user: a token with quotas for each member, nginx in front, metrics for Prometheus.
#
#   pip install 'warmcell[serve]'
#   ./examples/team_server.sh ~/sandboxes 8443             # serves until Ctrl-C
#   ./examples/team_server.sh ~/sandboxes 8443 --check     # starts everything, tries it, and stops
#
# DIRECTORY keeps tokens, logs and figures. For TLS, systemd and several machines see docs/deploying.md.
set -eu
directory=${1:?usage: team_server.sh DIRECTORY PORT [--check]}
port=${2:?usage: team_server.sh DIRECTORY PORT [--check]}
warmcell=${WARMCELL:-warmcell}
mkdir -p "$directory"
cd "$directory"
umask 077

# Tokens: two members and Prometheus. Each is printed once; the server's file has only hashes.
if [ ! -e tokens.json ]; then
    $warmcell token new ada --tokens tokens.json --runs 8 --sandboxes 4 >ada.token
    $warmcell token new ben --tokens tokens.json --runs 2 --sandboxes 1 --rate 20 >ben.token
    $warmcell token new prometheus --tokens tokens.json --scope metrics >prometheus.token
fi

$warmcell serve --port 0 --tokens tokens.json --audit audit.jsonl --usage usage.sqlite --metrics-by-tenant \
    --public-url "http://127.0.0.1:$port" --trusted-proxy 127.0.0.1 >address 2>server.log &
server=$!
trap 'kill $server $(cat nginx.pid 2>/dev/null) 2>/dev/null; wait' EXIT
trap 'exit 130' INT TERM
until [ -s address ] || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
[ -s address ] || { cat server.log >&2; exit 1; }

cat >nginx.conf <<END
pid $PWD/nginx.pid;
error_log $PWD/nginx.log;
events {}
http {
    access_log off;
    client_body_temp_path $PWD/nginx-body;
    proxy_temp_path $PWD/nginx-proxy;
    fastcgi_temp_path $PWD/nginx-1;
    uwsgi_temp_path $PWD/nginx-2;
    scgi_temp_path $PWD/nginx-3;
    map \$http_upgrade \$connection_header { default upgrade; "" ""; }
    server {
        listen 127.0.0.1:$port;
        client_max_body_size 66m;
        location / {
            proxy_pass $(cat address);
            proxy_http_version 1.1;
            proxy_set_header Host \$http_host;
            proxy_set_header X-Forwarded-For \$proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto \$scheme;
            proxy_set_header Upgrade \$http_upgrade;
            proxy_set_header Connection \$connection_header;
            proxy_buffering off;
            proxy_read_timeout 600s;
        }
    }
}
END
nginx=$(command -v nginx || echo /usr/sbin/nginx)
"$nginx" -c "$PWD/nginx.conf" -e "$PWD/nginx.log"

# prometheus --config.file=prometheus.yml
cat >prometheus.yml <<END
scrape_configs:
  - job_name: warmcell
    authorization: {credentials_file: $PWD/prometheus.token}
    static_configs: [{targets: ["127.0.0.1:$port"]}]
END

echo "http://127.0.0.1:$port"
if [ "${3:-}" != --check ]; then
    wait $server
    exit
fi

ask() {
    curl -s --max-time 60 -H "Authorization: Bearer $(cat "$1.token")" "http://127.0.0.1:$port$2"
}
curl -s --max-time 60 -H "Authorization: Bearer $(cat ada.token)" \
    --json '{"language": "python", "code": "print(6*7)", "timeout": 10}' "http://127.0.0.1:$port/v1/run" | grep -o '"stdout":"42\\n"'
ask ben /v1/identity | grep -o '"name":"ben"'
ask prometheus /metrics | grep -o '^warmcell_tenant_runs_total{outcome="ok"'
grep -c '"request"' audit.jsonl >/dev/null && echo "audited"
