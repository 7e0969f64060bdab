/* Attention as a program: reads DIR/input.safetensors, writes DIR/result.safetensors (see impls/PLUGINS.md).
   A safetensors file is the length of its header (8 bytes, little-endian, as this machine is), the header, which is
   JSON without spaces, and the data. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { long n[4]; float *at; } Array; /* (B, H, S, D) */

static void fail(const char *what, const char *why) { fprintf(stderr, "%s %s\n", what, why), exit(1); }

static Array array(char *header, char *data, const char *name) {
    char key[32], *s; Array a; int axes = 0; /* "q":{"dtype":"F32","shape":[2,2,5,8],"data_offsets":[0,640]} */
    snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"F32\",", name);
    if (!(s = strstr(header, key))) fail(name, "is not there in float32");
    for (s = strstr(s, "\"shape\":[") + 8; *s != ']' && axes < 4; axes++) a.n[axes] = strtol(s + 1, &s, 10);
    if (axes != 4 || *s != ']') fail(name, "has not 4 axes");
    a.at = (float *)(data + strtol(strstr(s, "\"data_offsets\":[") + 16, NULL, 10));
    return a;
}

int main(int argc, char **argv) {
    if (argc != 2) fail("usage:", "attention DIR | --describe");
    if (!strcmp(argv[1], "--describe")) return puts("{\"keywords\": [\"is_causal\", \"scale\"]}") < 0;
    char path[4096], *bytes = calloc(1, 1), *s; long size = 0; uint64_t length;
    snprintf(path, sizeof path, "%s/input.safetensors", argv[1]);
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, "cannot be read");
    for (int c; (c = getc(file)) != EOF; bytes[size++] = (char)c)
        if (!(size & (size - 1))) bytes = realloc(bytes, 2 * size + 2); /* 2, 4, 8 … bytes */
    memcpy(&length, bytes, 8);
    char *data = bytes + 8 + length, *header = memcpy(calloc(length + 1, 1), bytes + 8, length);
    Array q = array(header, data, "q"), k = array(header, data, "k"), v = array(header, data, "v");
    long B = q.n[0], H = q.n[1], S = q.n[2], D = q.n[3], G = k.n[1], T = k.n[2], E = v.n[3];
    if (k.n[0] != B || v.n[0] != B || k.n[3] != D || v.n[1] != G || v.n[2] != T || !G || H % G) fail("q, k, v", "do not fit");
    int causal = strstr(header, "\"is_causal\":\"true\"") != NULL;
    double scale = (s = strstr(header, "\"scale\":\"")) ? strtod(s + 9, NULL) : 1 / sqrt(D);
    float *output = calloc(B * H * S * E + 1, sizeof *output);
    double *p = calloc(T + 1, sizeof *p);
    for (long row = 0; row < B * H * S; row++) { /* one query: its scores, their softmax, the weighted sum of v */
        long i = row % S, h = row / S % H, b = row / S / H, kv = b * G + h / (H / G), keys = causal && i < T ? i + 1 : T;
        double top = -INFINITY, sum = 0;
        for (long j = 0; j < keys; top = fmax(top, p[j++])) {
            p[j] = 0;
            for (long d = 0; d < D; d++) p[j] += scale * q.at[row * D + d] * k.at[(kv * T + j) * D + d];
        }
        for (long j = 0; j < keys; j++) sum += p[j] = exp(p[j] - top);
        for (long e = 0; e < E; e++) {
            double total = 0;
            for (long j = 0; j < keys; j++) total += p[j] / sum * v.at[(kv * T + j) * E + e];
            output[row * E + e] = (float)total;
        }
    }
    char text[256];
    const char *form = "{\"output\":{\"dtype\":\"F32\",\"shape\":[%ld,%ld,%ld,%ld],\"data_offsets\":[0,%ld]}}";
    length = sprintf(text, form, B, H, S, E, B * H * S * E * 4);
    snprintf(path, sizeof path, "%s/result.safetensors", argv[1]);
    if (!(file = fopen(path, "wb"))) fail(path, "cannot be written");
    fwrite(&length, 8, 1, file), fwrite(text, 1, length, file), fwrite(output, 4, B * H * S * E, file);
    return fclose(file) != 0;
}
