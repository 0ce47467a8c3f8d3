void k_f32e9b111ab9(const int64_t* restrict p0, uint8_t* restrict p1, uint8_t* restrict p2) {
  {
    int t_p2[1] __attribute__((aligned(64)));
    for (int64_t i = 0; i < 1; ++i) t_p2[i] = 0;
    for (int64_t begin = 0; begin < 7; begin += 256) {
      const int64_t end = begin + 256 < 7 ? begin + 256 : 7;
      int a0 = 0;
      #pragma omp simd reduction(|:a0)
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const int64_t v2 = p0[r0];
        const int v3 = v2 < (0LL);
        const int v4 = v2 >= (50LL);
        const int v5 = v3 | v4;
        p1[r0] = v5;
        a0 = a0 | v5;
      }
      t_p2[0] = t_p2[0] | a0;
    }
    for (int64_t i = 0; i < 1; ++i) p2[i] = t_p2[i];
  }
}

void k_0117bf36a588(const int64_t* restrict p0, const float* restrict p1, float* restrict p2) {
  {
    for (int64_t row = 0; row < 7; ++row) {
      const int64_t r0 = row;
      const int64_t v0 = p0[r0];
      float a0 = -INFINITY;
      #pragma omp simd reduction(fgmax:a0)
      for (int64_t c0 = 0; c0 < 16; ++c0) {
        const float v1 = p1[c0 + fg_at(v0, 50) * 16];
        a0 = FG_MAX(v1, a0);
      }
      int64_t a1 = (9223372036854775807LL);
      #pragma omp simd reduction(fgmin:a1)
      for (int64_t c0 = 0; c0 < 16; ++c0) {
        const float v3 = p1[c0 + fg_at(v0, 50) * 16];
        const int v4 = v3 == a0;
        const int v5 = v3 != v3;
        const int v6 = v4 | v5;
        const int64_t v7 = c0;
        const int64_t v8 = v6 ? v7 : (9223372036854775807LL);
        a1 = FG_MIN(v8, a1);
      }
      const float v4 = (float)a1;
      double s2 = 0;
      for (int64_t c0 = 0; c0 < 16; ++c0) {
        const float v5 = (s2 = s2 + v4);
        p2[c0 + r0 * 16] = v5;
      }
    }
  }
}

void k_78ad9f3d23c7(const uint8_t* restrict p0, const float* restrict p1, float* restrict p2) {
  {
    for (int64_t row = 0; row < 7; ++row) {
      const int64_t r0 = row;
      const int v0 = p0[r0];
      #pragma omp simd
      for (int64_t r1 = 0; r1 < 16; ++r1) {
        const float v2 = p1[r0 * 16 + r1 * -1 + 15];
        const float v3 = v0 ? 0.0f : v2;
        p2[r0 * 16 + r1] = v3;
      }
    }
  }
}

void k_5ff95bb1fb79(float* restrict p0, int64_t n) {
  {
    for (int64_t begin = 0; begin < n; begin += 256) {
      const int64_t end = begin + 256 < n ? begin + 256 : n;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        p0[r0] = 0.0f;
      }
    }
  }
}

void k_f72c40c5bf93(const int64_t* restrict p0, const float* restrict p1, float* restrict p2) {
  for (int64_t s0 = 0; s0 < 7; ++s0) {
    const int64_t v0 = p0[s0];
    #pragma omp simd
    for (int64_t c0 = 0; c0 < 16; ++c0) {
      const float v1 = p2[c0 + fg_at(v0, 50) * 16];
      const float v2 = p1[c0 + s0 * 16];
      const float v3 = v1 + v2;
      p2[c0 + fg_at(v0, 50) * 16] = v3;
    }
  }
}
