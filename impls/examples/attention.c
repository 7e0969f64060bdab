/* Attention as a program: reads DIR/input.safetensors, writes DIR/result.safetensors.
   cc -std=c99 -O2 -o attention attention.c -lm
   pytest conformance --impl ./attention */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { long n[4]; float *at; } Array; /* (B, H, S, D) */

static Array array(char *header, char *data, const char *name) { /* "q":{"dtype":"F32","shape":[…],"data_offsets":[…]} */
    char key[16], *s; Array a; int axes = 0;
    snprintf(key, sizeof key, "\"%s\":{", name);
    if (!(s = strstr(header, key))) exit(fprintf(stderr, "no %s\n", name) > 0);
    if (!strstr(s, "\"F32\"") || strstr(s, "\"F32\"") > strchr(s, '}')) exit(fprintf(stderr, "%s is not float32\n", name) > 0);
    for (s = strstr(s, "\"shape\":[") + 8; *s != ']' && axes < 4; axes++) a.n[axes] = strtol(s + 1, &s, 10);
    if (axes != 4 || *s != ']') exit(fprintf(stderr, "%s has not 4 axes\n", name) > 0);
    a.at = (float *)(data + strtol(strstr(s, "\"data_offsets\":[") + 16, NULL, 10));
    return a;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--describe")) return puts("{\"keywords\": [\"is_causal\", \"scale\"]}") < 0;
    char path[4096], *s; uint64_t length = 0; long size;
    snprintf(path, sizeof path, "%s/input.safetensors", argc == 2 ? argv[1] : ".");
    FILE *file = fopen(path, "rb");
    if (!file) return perror(path), 1;
    fseek(file, 0, SEEK_END), size = ftell(file), rewind(file);
    char *bytes = malloc(size + 1);
    if (size < 8 || fread(bytes, 1, size, file) != (size_t)size) return fputs("short file\n", stderr), 1;
    memcpy(&length, bytes, 8); /* little-endian, as this machine is; the header is JSON, the data lies behind it */
    char *header = bytes + 8, *data = header + length, *copy = memcpy(calloc(length + 1, 1), header, length);
    Array q = array(copy, data, "q"), k = array(copy, data, "k"), v = array(copy, data, "v");
    long B = q.n[0], H = q.n[1], S = q.n[2], D = q.n[3], G = k.n[1], T = k.n[2], E = v.n[3];
    if (k.n[0] != B || v.n[0] != B || v.n[1] != G || v.n[2] != T || k.n[3] != D || (G ? H % G : H))
        return fputs("shapes do not fit\n", stderr), 1;
    int causal = strstr(copy, "\"is_causal\":\"true\"") != NULL;
    double scale = (s = strstr(copy, "\"scale\":\"")) ? strtod(s + 9, NULL) : 1 / sqrt(D);
    float *output = calloc(B * H * S * E + 1, sizeof *output);
    double *p = malloc((T + 1) * sizeof *p);
    for (long row = 0; row < B * H * S; row++) {
        long i = row % S, h = row / S % H, head = row / S / H * G + h / (H / G), keys = causal && i + 1 < T ? i + 1 : T;
        double top = -INFINITY, sum = 0;
        for (long j = 0; j < keys; top = fmax(top, p[j++]))
            for (long d = p[j] = 0; d < D; d++) p[j] += scale * q.at[row * D + d] * k.at[(head * T + j) * D + d];
        for (long j = 0; j < keys; j++) sum += p[j] = exp(p[j] - top);
        for (long e = 0; e < E; e++) {
            double total = 0;
            for (long j = 0; j < keys; j++) total += p[j] / sum * v.at[(head * T + j) * E + e];
            output[row * E + e] = total;
        }
    }
    snprintf(path, sizeof path, "%s/result.safetensors", argv[1]);
    char text[256];
    length = sprintf(text, "{\"output\":{\"dtype\":\"F32\",\"shape\":[%ld,%ld,%ld,%ld],\"data_offsets\":[0,%ld]}}", B, H, S, E, B * H * S * E * 4);
    if (!(file = fopen(path, "wb"))) return perror(path), 1;
    fwrite(&length, 8, 1, file), fwrite(text, 1, length, file), fwrite(output, 4, B * H * S * E, file);
    return fclose(file) != 0;
}
