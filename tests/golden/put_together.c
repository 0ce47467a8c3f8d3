void k_a12165891cc1(const float* restrict p0, float* restrict p1) {
  {
    for (int64_t row = 0; row < 5; ++row) {
      const int64_t r0 = row;
      const int64_t v0 = r0;
      const int v2 = v0 < (4LL);
      const int v3 = v0 >= (4LL);
      {
        int far = 0;
        #pragma omp simd simdlen(8) reduction(|:far)
        for (int64_t r1 = 0; r1 < 30; ++r1) {
          const float v6 = p0[CLAMP(r0, 0, 3) * 30 + r1 + 30];
          const float v7 = p0[r1 * -1 + 29];
          const float v8 = v7 * 2.0f;
          const float v9 = v3 ? v8 : 0.0f;
          const float v10 = v2 ? v6 : v9;
          const float v11 = fg_sinf(v10);
          const float v12 = -v11;
          far |= fabsf(v10) > FG_NEAR;
          p1[r0 * 30 + r1] = v12;
        }
        if (far) {
          #pragma omp simd
          for (int64_t r1 = 0; r1 < 30; ++r1) {
            const float v6 = p0[CLAMP(r0, 0, 3) * 30 + r1 + 30];
            const float v7 = p0[r1 * -1 + 29];
            const float v8 = v7 * 2.0f;
            const float v9 = v3 ? v8 : 0.0f;
            const float v10 = v2 ? v6 : v9;
            const float v11 = mv_sinf(v10);
            const float v12 = -v11;
            p1[r0 * 30 + r1] = v12;
          }
        }
      }
    }
  }
}

void k_ef4f92d83854(const float* restrict p0, float* restrict p1) {
  {
    for (int64_t begin = 0; begin < 30; begin += 256) {
      const int64_t end = begin + 256 < 30 ? begin + 256 : 30;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v1 = p0[r0 + 120];
        const float v2 = v1 * 2.0f;
        p1[r0] = v2;
      }
    }
  }
}

void k_b2f5d693bc28(const float* restrict p0, const float* restrict p1, float* restrict p2) {
  {
    for (int64_t row = 0; row < 5; ++row) {
      const int64_t r0 = row;
      const int64_t v0 = r0;
      const int v2 = v0 < (1LL);
      const int v4 = v0 >= (1LL);
      #pragma omp simd
      for (int64_t r1 = 0; r1 < 30; ++r1) {
        const float v5 = p0[r1 * -1 + 29];
        const float v6 = v2 ? v5 : 0.0f;
        const float v7 = p1[CLAMP(r0, 1, 4) * 30 + r1 + -30];
        const float v8 = v4 ? v7 : 0.0f;
        const float v9 = v6 + v8;
        p2[r0 * 30 + r1] = v9;
      }
    }
  }
}
