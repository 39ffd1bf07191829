#!/bin/sh
# Makes the certificates of the transport's tests anew. Nothing trusts them, and the keys open nothing.
set -eu
cd "$(dirname "$0")"
days=36500
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days $days \
        -subj "/CN=Fareway tests $1" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout "$1.key" -out "$1.pem"
}
leaf() { # authority name extensions
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$2" \
        -keyout "$2.key" -out "$2.csr"
    printf '%b' "$3" > "$2.ext"
    openssl x509 -req -in "$2.csr" -CA "$1.pem" -CAkey "$1.key" -CAcreateserial -days $days \
        -extfile "$2.ext" -out "$2.pem"
    rm "$2.csr" "$2.ext"
}
authority authority
authority stranger
usual="basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
leaf authority upstream "${usual}subjectAltName=DNS:localhost,DNS:upstream.test,IP:127.0.0.1\n"
leaf authority client "${usual}extendedKeyUsage=clientAuth\n"
openssl ec -in client.key -aes128 -passout pass:tests -out client_encrypted.key
rm -f authority.key stranger.key authority.srl
