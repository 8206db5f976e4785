#!/usr/bin/env bash
# certificates.sh FOLDER: an authority of its own, and by it a certificate for the extender (server.crt, server.key) and
# one for kube-scheduler (client.crt, client.key). Nothing else has a certificate of this authority, so nobody else is
# let in: the cluster's own would let every kubelet in. Run it again before the year is over.
set -euo pipefail

(($# == 1)) || { echo "usage: certificates.sh FOLDER" >&2; exit 2; }
umask 077
mkdir -p -- "$1" && cd -- "$1"
days=365
# The Service's names; 127.0.0.1 for a kube-scheduler on the same machine. Add the Service's cluster IP by NAMES.
names=${NAMES:-DNS:aaml-extender.aaml.svc,IP:127.0.0.1}

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

new_key ca
openssl req -x509 -new -key ca.key -days "$days" -subj /CN=aaml-extender-ca -out ca.crt \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
for who in server client; do
    new_key "$who"
    openssl req -new -key "$who.key" -subj "/CN=aaml-extender-$who" -out "$who.csr"
    printf 'extendedKeyUsage=%sAuth\nkeyUsage=digitalSignature\n' "$who" > "$who.ext"
    if [[ $who == server ]]; then echo "subjectAltName=$names" >> "$who.ext"; fi
    openssl x509 -req -in "$who.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile "$who.ext" \
        -out "$who.crt" 2> /dev/null
    rm -- "$who.csr" "$who.ext"
done
rm -f -- ca.key ca.srl # nobody can make another one
